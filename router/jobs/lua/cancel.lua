-- ARGV  1 id  2 owner
-- Gives the state it has then: cancelled at once where it waits; running where whoever holds it will hear of it.

local key = job(ARGV[1])
local state, owner = unpack(redis.call('HMGET', key, 'state', 'owner'))
if not state or owner ~= ARGV[2] then return false end
if state == 'queued' or state == 'waiting' then
  finish(ARGV[1], 'cancelled', 0, '', 'It was cancelled.')
  return 'cancelled'
end
if state == 'running' then redis.call('HSET', key, 'cancel', 1) end
return state
