-- ARGV  1 most jobs  2 lease ms
-- The first of the queue get a lease each. Gives for each: id, fence, owner, surface, body, ms that are left for waiting.

local found = {}
for _, id in ipairs(redis.call('ZRANGE', queue, 0, ARGV[1] - 1)) do
  local key = job(id)
  local owner, surface, queue_until = unpack(redis.call('HMGET', key, 'owner', 'surface', 'queue_until'))
  local body = redis.call('GET', body_of(id))
  redis.call('ZREM', queue, id)
  if not (owner and body) then
    redis.call('ZREM', deadlines, id)
  elseif tonumber(queue_until) <= now then
    finish(id, 'expired', 0, '', 'It was not begun in time.')
  else
    redis.call('ZREM', deadlines, id)
    redis.call('ZADD', leases, now + tonumber(ARGV[2]), id)
    local fence = redis.call('HINCRBY', key, 'fence', 1)
    redis.call('HSET', key, 'state', 'running', 'changed', now)
    found[#found + 1] = {id, fence, owner, surface, body, tonumber(queue_until) - now}
  end
end
return found
