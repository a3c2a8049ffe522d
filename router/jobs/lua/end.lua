-- ARGV  1 id  2 fence  3 state: succeeded, failed, cancelled, or again  4 status  5 result  6 what went wrong
--       7 ms to wait where it is to be tried again, 0 for its own delay
-- Only who holds the job ends it. Gives 1, or 0 where it was another's by then. Tried again means later, under the same
-- deadline and at the same place of the queue; not more often than it may be.

local id, key = ARGV[1], job(ARGV[1])
local state, fence, tries, most, delay, most_delay, queue_until, cancel = unpack(redis.call('HMGET', key, 'state', 'fence',
  'tries', 'most_tries', 'delay_ms', 'most_delay_ms', 'queue_until', 'cancel'))
if state ~= 'running' or fence ~= ARGV[2] then return 0 end
local outcome = ARGV[3]
if cancel then outcome = 'cancelled' end
if outcome ~= 'again' then
  finish(id, outcome, ARGV[4], ARGV[5], ARGV[6])
  return 1
end
tries = tonumber(tries) + 1
local wait = math.max(tonumber(ARGV[7]), math.min(tonumber(most_delay), tonumber(delay) * 2 ^ (tries - 1)))
if tries >= tonumber(most) or now + wait >= tonumber(queue_until) then
  finish(id, 'failed', ARGV[4], ARGV[5], ARGV[6])
else
  redis.call('HSET', key, 'state', 'waiting', 'tries', tries, 'changed', now, 'fault', ARGV[6])
  redis.call('ZREM', leases, id)
  redis.call('ZADD', delayed, now + wait, id)
  redis.call('ZADD', deadlines, queue_until, id)
end
return 1
