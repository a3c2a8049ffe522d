-- ARGV  1 owner  2 id  3 state  4 record  5 ms to keep it  6 most bytes of its owner  7 what runs it again  8 lease ms
-- One that goes on without its client. Gives its fence.

keep(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6])
redis.call('HSET', response(ARGV[2]), 'work', ARGV[7], 'fence', 1, 'deaths', 0, 'said', 0, 'seen', now)
redis.call('ZADD', held, now + tonumber(ARGV[8]), ARGV[2])
return 1
