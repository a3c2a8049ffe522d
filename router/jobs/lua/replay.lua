-- ARGV  1 id  2 owner, '' for any
-- A webhook is sent anew, from its first attempt on. Gives 0 where there is none of that owner that has ended.

local key = job(ARGV[1])
local owner, hook, state = unpack(redis.call('HMGET', key, 'owner', 'hook', 'hook_state'))
if not hook or hook == '' or not state or (ARGV[2] ~= '' and owner ~= ARGV[2]) then return 0 end
redis.call('HSET', key, 'hook_state', 'pending', 'hook_attempt', 0)
redis.call('ZREM', prefix .. 'dead', ARGV[1])
redis.call('ZADD', hooks, now, ARGV[1])
return 1
