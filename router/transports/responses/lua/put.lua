-- ARGV  1 owner  2 id  3 state  4 record  5 ms to keep it  6 most bytes of its owner

keep(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6])
return 1
