-- ARGV  1 id  2 attempt  3 outcome: delivered, again, dead  4 ms to wait where it is tried again  5 what went wrong
-- Only the latest attempt speaks. A webhook that is given up can be read and sent anew for as long as its job is kept.

local id, key = ARGV[1], job(ARGV[1])
if redis.call('HGET', key, 'hook_attempt') ~= ARGV[2] then return 0 end
redis.call('HSET', key, 'hook_fault', ARGV[5])
if ARGV[3] == 'again' then
  redis.call('ZADD', hooks, now + tonumber(ARGV[4]), id)
  return 1
end
redis.call('ZREM', hooks, id)
redis.call('HSET', key, 'hook_state', ARGV[3] == 'delivered' and 'delivered' or 'failed')
if ARGV[3] == 'dead' then redis.call('ZADD', prefix .. 'dead', now, id) end
return 1
