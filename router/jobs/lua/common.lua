-- Before every script of jobs: their keys, the time, and how a job ends. Lua on Redis 6.2 and newer.
--
-- KEYS  1 what all keys of jobs begin with; they stand in one hash slot.
-- job:ID (hash)  body:ID, result:ID (what is asked and answered: beside the hash, which Redis keeps in a third of the
-- room as long as its values are short)  queue (sorted set: priority * 2^45 + sequence)  leases, delayed, deadlines (sorted sets: ms since 1970)
-- hooks (sorted set: when its webhook is due)  dead (sorted set: webhooks given up)  sequence (counter)
-- batch:ID:ended (list of lines that ended)

if redis.replicate_commands then redis.replicate_commands() end
local prefix = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local queue, leases, delayed, deadlines = prefix .. 'queue', prefix .. 'leases', prefix .. 'delayed', prefix .. 'deadlines'
local hooks = prefix .. 'hooks'
local function job(id) return prefix .. 'job:' .. id end
local function body_of(id) return prefix .. 'body:' .. id end
local function result_of(id) return prefix .. 'result:' .. id end

-- The thirteen arguments of a new job from ARGV[at] on: id, owner, surface, body, priority, most ms in the queue, most tries,
-- first delay ms, most delay ms, webhook (JSON or ''), batch ('' for none), ms to keep it once it has ended, and the
-- name that its client gave it.
local function add(at)
  local id, sequence = ARGV[at], redis.call('INCR', prefix .. 'sequence')
  local score = string.format('%.0f', tonumber(ARGV[at + 4]) * 2 ^ 45 + sequence)
  redis.call('SET', body_of(id), ARGV[at + 3])
  redis.call('HSET', job(id), 'state', 'queued', 'owner', ARGV[at + 1], 'surface', ARGV[at + 2], 'score', score,
     'queue_until', now + tonumber(ARGV[at + 5]), 'tries', 0, 'most_tries', ARGV[at + 6],
    'delay_ms', ARGV[at + 7], 'most_delay_ms', ARGV[at + 8], 'hook', ARGV[at + 9], 'batch', ARGV[at + 10],
    'keep_ms', ARGV[at + 11], 'name', ARGV[at + 12], 'fence', 0, 'deaths', 0, 'created', now, 'changed', now)
  redis.call('ZADD', queue, score, id)
  redis.call('ZADD', deadlines, now + tonumber(ARGV[at + 5]), id)
  return at + 13
end

local function finish(id, state, status, result, fault)
  local key = job(id)
  redis.call('HSET', key, 'state', state, 'changed', now, 'status', status, 'fault', fault)
  redis.call('DEL', body_of(id))
  if result ~= '' then redis.call('SET', result_of(id), result) end
  redis.call('ZREM', queue, id)
  redis.call('ZREM', leases, id)
  redis.call('ZREM', delayed, id)
  redis.call('ZREM', deadlines, id)
  local batch, hook, keep_ms = unpack(redis.call('HMGET', key, 'batch', 'hook', 'keep_ms'))
  if batch ~= '' then
    redis.call('RPUSH', prefix .. 'batch:' .. batch .. ':ended', id)
  else
    redis.call('PEXPIRE', key, keep_ms)
    redis.call('PEXPIRE', result_of(id), keep_ms)
  end
  if hook ~= '' then
    redis.call('HSET', key, 'hook_state', 'pending')
    redis.call('ZADD', hooks, now, id)
  end
end
