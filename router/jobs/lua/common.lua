-- Before every script of jobs: their keys, the time, and how a job ends. Lua on Redis 6.2 and newer.
--
-- KEYS  1 what all keys of jobs begin with; they stand in one hash slot.
-- job:ID (hash)  queue (sorted set: priority * 2^45 + sequence)  leases, delayed, deadlines (sorted sets: ms since 1970)
-- hooks (sorted set: when its webhook is due)  dead (sorted set: webhooks given up)  sequence (counter)
-- batch:ID:ended (list of lines that ended)

if redis.replicate_commands then redis.replicate_commands() end
local prefix = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local queue, leases, delayed, deadlines = prefix .. 'queue', prefix .. 'leases', prefix .. 'delayed', prefix .. 'deadlines'
local hooks = prefix .. 'hooks'
local function job(id) return prefix .. 'job:' .. id end

local function finish(id, state, status, result, fault)
  local key = job(id)
  redis.call('HSET', key, 'state', state, 'changed', now, 'status', status, 'result', result, 'fault', fault)
  redis.call('HDEL', key, 'body')
  redis.call('ZREM', queue, id)
  redis.call('ZREM', leases, id)
  redis.call('ZREM', delayed, id)
  redis.call('ZREM', deadlines, id)
  local batch, hook, keep_ms = unpack(redis.call('HMGET', key, 'batch', 'hook', 'keep_ms'))
  if batch ~= '' then
    redis.call('RPUSH', prefix .. 'batch:' .. batch .. ':ended', id)
  else
    redis.call('PEXPIRE', key, keep_ms)
  end
  if hook ~= '' then
    redis.call('HSET', key, 'hook_state', 'pending')
    redis.call('ZADD', hooks, now, id)
  end
end
