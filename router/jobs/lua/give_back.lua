-- ARGV  id and fence of each job that is held and was not served: they wait where they waited, and nothing is counted.

for at = 1, #ARGV, 2 do
  local id, key = ARGV[at], job(ARGV[at])
  local state, fence, score, queue_until = unpack(redis.call('HMGET', key, 'state', 'fence', 'score', 'queue_until'))
  if state == 'running' and fence == ARGV[at + 1] then
    redis.call('HSET', key, 'state', 'queued', 'changed', now)
    redis.call('ZREM', leases, id)
    redis.call('ZADD', queue, score, id)
    redis.call('ZADD', deadlines, queue_until, id)
  end
end
return 1
