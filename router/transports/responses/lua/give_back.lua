-- ARGV  id and fence of each that is held and shall go on elsewhere. That is no death of who held it.

for at = 1, #ARGV, 2 do
  if is_held(ARGV[at], ARGV[at + 1]) then
    redis.call('ZADD', held, now, ARGV[at])
    redis.call('HINCRBY', response(ARGV[at]), 'deaths', -1)
  end
end
return 1
