-- ARGV  1 most webhooks  2 ms after which another may try one that is not answered for
-- Those that are due. Gives for each: id, attempt, result, state, status, fault, hook, surface, created, changed.

local found = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', hooks, '-inf', now, 'LIMIT', 0, ARGV[1])) do
  local key = job(id)
  if redis.call('EXISTS', key) == 0 then
    redis.call('ZREM', hooks, id)
  else
    redis.call('ZADD', hooks, now + tonumber(ARGV[2]), id)
    local attempt = redis.call('HINCRBY', key, 'hook_attempt', 1)
    local row = redis.call('HMGET', key, 'state', 'status', 'fault', 'hook', 'surface', 'created', 'changed')
    found[#found + 1] = {id, attempt, redis.call('GET', result_of(id)), unpack(row)}
  end
end
return found
