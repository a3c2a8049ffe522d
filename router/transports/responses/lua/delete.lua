-- ARGV  1 owner  2 id
-- Gives 1, or 0 where the owner has none of that id. Who runs it hears of it as of any that is lost.

if redis.call('HGET', response(ARGV[2]), 'owner') ~= ARGV[1] then return 0 end
forget(ARGV[1], ARGV[2])
return 1
