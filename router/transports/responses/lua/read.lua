-- ARGV  1 id  2 number of the last event that is known, -1 for none  3 most events
-- Gives whether it runs, then number and text of each event behind that.

local id = ARGV[1]
local runs = redis.call('ZSCORE', held, id)
if runs then redis.call('HSET', response(id), 'seen', now) end
local found = {runs and 1 or 0}
for _, entry in ipairs(redis.call('XRANGE', events(id), (tonumber(ARGV[2]) + 2) .. '-0', '+', 'COUNT', ARGV[3])) do
  found[#found + 1] = tonumber(string.match(entry[1], '^%d+')) - 1
  found[#found + 1] = entry[2][2]
end
return found
