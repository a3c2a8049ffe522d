-- A batch: batch:ID (hash: owner, document, fence, state, offset, line, total, open, done, failed, out_bytes, err_bytes,
-- expires), batches (sorted set of those that are not over: ms until another may take it), batches:OWNER (sorted set by
-- creation). ARGV  1 what to do, then its arguments.

local what, id = ARGV[1], ARGV[2]
local key = prefix .. 'batch:' .. id
local batches = prefix .. 'batches'

local function is_ours(fence) return redis.call('HGET', key, 'fence') == fence end

if what == 'create' then  -- id, owner, document, ms until it expires
  redis.call('HSET', key, 'owner', ARGV[3], 'document', ARGV[4], 'fence', 0, 'state', 'validating', 'offset', 0, 'line', 0,
    'total', 0, 'open', 0, 'done', 0, 'failed', 0, 'out_bytes', 0, 'err_bytes', 0, 'expires', now + tonumber(ARGV[5]))
  redis.call('ZADD', batches, 0, id)
  redis.call('ZADD', prefix .. 'batches:' .. ARGV[3], now, id)
  return 1
elseif what == 'take' then  -- '', lease ms: gives id and fence of one that nobody looks after
  local free = redis.call('ZRANGEBYSCORE', batches, '-inf', now, 'LIMIT', 0, 1)[1]
  if not free then return false end
  redis.call('ZADD', batches, now + tonumber(ARGV[3]), free)
  return {free, redis.call('HINCRBY', prefix .. 'batch:' .. free, 'fence', 1)}
elseif what == 'keep' then  -- id, fence, lease ms: is it still ours?
  if not is_ours(ARGV[3]) then return 0 end
  redis.call('ZADD', batches, 'XX', now + tonumber(ARGV[4]), id)
  return 1
elseif what == 'begin' then  -- id, fence, total, document: it is valid; who cancelled it meanwhile is heard
  if not is_ours(ARGV[3]) then return 0 end
  redis.call('HSET', key, 'total', ARGV[4], 'document', ARGV[5])
  if redis.call('HGET', key, 'state') == 'validating' then redis.call('HSET', key, 'state', 'in_progress') end
  return 1
elseif what == 'set' then  -- id, fence, then names and values
  if not is_ours(ARGV[3]) then return 0 end
  redis.call('HSET', key, unpack(ARGV, 4))
  return 1
elseif what == 'feed' then  -- id, fence, offset, line, number of jobs, then each
  if not is_ours(ARGV[3]) then return 0 end
  local at = 7
  for _ = 1, tonumber(ARGV[6]) do
    redis.call('SADD', key .. ':open', ARGV[at])
    at = add(at)
  end
  redis.call('HSET', key, 'offset', ARGV[4], 'line', ARGV[5])
  redis.call('HINCRBY', key, 'open', ARGV[6])
  return 1
elseif what == 'settle' then  -- id, fence, bytes of output, of errors, lines done, failed, then ids that are written
  if not is_ours(ARGV[3]) then return 0 end
  redis.call('HSET', key, 'out_bytes', ARGV[4], 'err_bytes', ARGV[5])
  redis.call('HINCRBY', key, 'done', ARGV[6])
  redis.call('HINCRBY', key, 'failed', ARGV[7])
  redis.call('HINCRBY', key, 'open', 7 - #ARGV)
  redis.call('LTRIM', key .. ':ended', #ARGV - 7, -1)
  for at = 8, #ARGV do
    redis.call('SREM', key .. ':open', ARGV[at])
    redis.call('DEL', job(ARGV[at]), body_of(ARGV[at]), result_of(ARGV[at]))
  end
  return 1
elseif what == 'over' then  -- id, fence, state, document, ms to keep it
  if not is_ours(ARGV[3]) then return 0 end
  redis.call('HSET', key, 'state', ARGV[4], 'document', ARGV[5])
  redis.call('ZREM', batches, id)
  redis.call('PEXPIRE', key, ARGV[6])
  redis.call('DEL', key .. ':ended')
  return 1
elseif what == 'cancel' then  -- id, owner: gives its state then
  local owner, state = unpack(redis.call('HMGET', key, 'owner', 'state'))
  if not state or owner ~= ARGV[3] then return false end
  if state == 'validating' or state == 'in_progress' then
    state = 'cancelling'
    redis.call('HSET', key, 'state', state, 'cancelling_at', math.floor(now / 1000))
  end
  return state
end
return redis.error_reply('unknown: ' .. what)
