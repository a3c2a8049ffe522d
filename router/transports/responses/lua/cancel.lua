-- ARGV  1 owner  2 id  3 lease ms
-- One that runs becomes whose cancels it, who owes its end. Gives fence and number of events so far; nothing where it
-- does not run.

local id = ARGV[2]
if redis.call('HGET', response(id), 'owner') ~= ARGV[1] or not redis.call('ZSCORE', held, id) then return false end
redis.call('HSET', response(id), 'cancel', 1)
redis.call('ZADD', held, now + tonumber(ARGV[3]), id)
return {redis.call('HINCRBY', response(id), 'fence', 1), tonumber(redis.call('HGET', response(id), 'said'))}
