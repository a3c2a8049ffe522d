-- ARGV  1 lease ms
-- One whose lease has ended: who held it is gone. Gives id, fence, owner, record, work, deaths, number of events so far,
-- and whether it is to be cancelled.

for _, id in ipairs(redis.call('ZRANGEBYSCORE', held, '-inf', now, 'LIMIT', 0, 16)) do
  local owner, record, work, said, cancel = unpack(redis.call('HMGET', response(id), 'owner', 'record', 'work', 'said', 'cancel'))
  if work then
    redis.call('ZADD', held, now + tonumber(ARGV[1]), id)
    local fence = redis.call('HINCRBY', response(id), 'fence', 1)
    local deaths = redis.call('HINCRBY', response(id), 'deaths', 1)
    return {id, fence, owner, record, work, deaths, tonumber(said), cancel and 1 or 0}
  end
  redis.call('ZREM', held, id)
end
return false
