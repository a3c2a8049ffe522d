-- ARGV  1 lease ms, then id and fence of each job that is held
-- Gives for each: 1 it is still held, 0 it is lost, 2 it is to be cancelled.

local found = {}
for at = 2, #ARGV, 2 do
  local id = ARGV[at]
  local state, fence, cancel = unpack(redis.call('HMGET', job(id), 'state', 'fence', 'cancel'))
  if state ~= 'running' or fence ~= ARGV[at + 1] then
    found[#found + 1] = 0
  else
    redis.call('ZADD', leases, 'XX', now + tonumber(ARGV[1]), id)
    found[#found + 1] = cancel and 2 or 1
  end
end
return found
