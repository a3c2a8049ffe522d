-- ARGV  1 key of idempotency ('' for none)  2 how long it counts, ms  3 number of jobs, then for each:
--       id, owner, surface, body, priority, most ms in the queue, most tries, first delay ms, most delay ms, webhook (JSON
--       or ''), batch ('' for none), ms to keep it once it has ended
-- Gives the id of the one job, which is an earlier one's where the key was used before; else the number of jobs.

local same, at = ARGV[1], 4
if same ~= '' then
  local key = prefix .. 'same:' .. same
  local before = redis.call('GET', key)
  if before and redis.call('EXISTS', job(before)) == 1 then return before end
  redis.call('SET', key, ARGV[at], 'PX', ARGV[2])
end
for _ = 1, tonumber(ARGV[3]) do
  local id, sequence = ARGV[at], redis.call('INCR', prefix .. 'sequence')
  local score = string.format('%.0f', tonumber(ARGV[at + 4]) * 2 ^ 45 + sequence)
  redis.call('HSET', job(id), 'state', 'queued', 'owner', ARGV[at + 1], 'surface', ARGV[at + 2], 'body', ARGV[at + 3],
    'score', score, 'queue_until', now + tonumber(ARGV[at + 5]), 'tries', 0, 'most_tries', ARGV[at + 6],
    'delay_ms', ARGV[at + 7], 'most_delay_ms', ARGV[at + 8], 'hook', ARGV[at + 9], 'batch', ARGV[at + 10],
    'keep_ms', ARGV[at + 11], 'fence', 0, 'deaths', 0, 'created', now, 'changed', now)
  redis.call('ZADD', queue, score, id)
  redis.call('ZADD', deadlines, now + tonumber(ARGV[at + 5]), id)
  at = at + 12
end
return ARGV[3] == '1' and ARGV[4] or tonumber(ARGV[3])
