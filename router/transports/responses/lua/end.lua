-- ARGV  1 id  2 fence  3 state  4 record  5 ms to keep it  6 most bytes of its owner  7 ms to keep its events
--       8 most events  9 number of the first event, then the events
-- Only who holds it ends it. Gives 1, or 0 where it is another's by now.

local id = ARGV[1]
if not is_held(id, ARGV[2]) then return 0 end
if #ARGV > 9 then say(id, ARGV[8], tonumber(ARGV[9]), 10) end
redis.call('ZREM', held, id)
redis.call('HDEL', response(id), 'work')
keep(redis.call('HGET', response(id), 'owner'), id, ARGV[3], ARGV[4], ARGV[5], ARGV[6])
redis.call('PEXPIRE', events(id), ARGV[7])
return 1
