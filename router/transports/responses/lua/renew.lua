-- ARGV  1 lease ms, then id and fence of each that is held
-- Gives for each the ms since somebody read its events, -1 where it is lost.

local found = {}
for at = 2, #ARGV, 2 do
  local id = ARGV[at]
  if is_held(id, ARGV[at + 1]) then
    redis.call('ZADD', held, now + tonumber(ARGV[1]), id)
    found[#found + 1] = now - tonumber(redis.call('HGET', response(id), 'seen'))
  else
    found[#found + 1] = -1
  end
end
return found
