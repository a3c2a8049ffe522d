-- ARGV  1 id  2 fence  3 state  4 most events  5 number of the first event, then the events
-- Gives 1, or 0 where it is another's by now.

if not is_held(ARGV[1], ARGV[2]) then return 0 end
redis.call('HSET', response(ARGV[1]), 'state', ARGV[3])
say(ARGV[1], ARGV[4], tonumber(ARGV[5]), 6)
return 1
