-- ARGV  1 number of fields, then those, then ids
-- Gives for each id: its result, then those fields of the job, which are nil where there is no such job.

local fields, found = {}, {}
for at = 2, ARGV[1] + 1 do fields[#fields + 1] = ARGV[at] end
for at = ARGV[1] + 2, #ARGV do
  found[#found + 1] = {redis.call('GET', result_of(ARGV[at])), unpack(redis.call('HMGET', job(ARGV[at]), unpack(fields)))}
end
return found
