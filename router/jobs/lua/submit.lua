-- ARGV  1 key of idempotency ('' for none)  2 how long it counts, ms  3 number of jobs, then each
-- Gives the id of the one job, which is an earlier one's where the key was used before; else the number of jobs.

local same, at = ARGV[1], 4
if same ~= '' then
  local key = prefix .. 'same:' .. same
  local before = redis.call('GET', key)
  if before and redis.call('EXISTS', job(before)) == 1 then return before end
  redis.call('SET', key, ARGV[at], 'PX', ARGV[2])
end
for _ = 1, tonumber(ARGV[3]) do at = add(at) end
return ARGV[3] == '1' and ARGV[4] or tonumber(ARGV[3])
