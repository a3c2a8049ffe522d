-- Part of one account's limits, for one router to give out by itself: requests and tokens of this minute, of the day's
-- and the month's budget, and places for open requests. What was not used comes back as a negative wish.
--
-- KEYS  1 account (hash: rl, rt, tl, tt the rates' levels and when they were so; d, dn, m, mn what was used of which day
--         and month; o:<router> -> open,seen_ms)
-- ARGV  1 router  2 requests a minute  3 tokens a minute  4 open requests  5 tokens a day  6 tokens a month; -1 for none
--       7 day  8 month  9 requests wished  10 tokens wished  11 tokens used beyond what was given
--       12 open requests kept  13 more of them wished  14 lease_ms
-- Gives [requests, tokens, open requests held, level of requests, level of tokens, left of the day, left of the month]

if redis.replicate_commands then redis.replicate_commands() end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local key, me = KEYS[1], ARGV[1]
local limit = {}
for i = 2, 6 do limit[i] = tonumber(ARGV[i]) end
local state = redis.call('HMGET', key, 'rl', 'rt', 'tl', 'tt', 'd', 'dn', 'm', 'mn')
local none = 9007199254740991

local function level(most, stored, at)
  if most < 0 then return none end
  local was = tonumber(stored)
  if not was then return most end
  return math.min(most, was + math.max(0, now - (tonumber(at) or now)) * most / 60000)
end
local function used(stored, period, current)  -- a clock that steps back opens no old budget
  if not period or period < current then return 0, current end
  return tonumber(stored) or 0, period
end

local requests, tokens = level(limit[2], state[1], state[2]), level(limit[3], state[3], state[4])
local day_used, day = used(state[5], state[6], ARGV[7])
local month_used, month = used(state[7], state[8], ARGV[8])
local function day_left() return limit[5] < 0 and none or limit[5] - day_used end
local function month_left() return limit[6] < 0 and none or limit[6] - month_used end

local owed = tonumber(ARGV[11])  -- was used already, whatever is left
tokens, day_used, month_used = tokens - owed, day_used + owed, month_used + owed
local wish = tonumber(ARGV[9])
local got_requests = wish > 0 and math.max(0, math.min(wish, math.floor(requests))) or wish
wish = tonumber(ARGV[10])
local got_tokens = wish > 0 and math.max(0, math.min(wish, math.floor(math.min(tokens, day_left(), month_left())))) or wish
if limit[2] >= 0 then requests = math.min(limit[2], requests - got_requests) end
if limit[3] >= 0 then tokens = math.min(limit[3], tokens - got_tokens) end
day_used, month_used = math.max(0, day_used + got_tokens), math.max(0, month_used + got_tokens)

local others, flat = 0, redis.call('HGETALL', key)
for i = 1, #flat, 2 do
  local router = string.match(flat[i], '^o:(.*)$')
  if router and router ~= me then
    local open, seen = string.match(flat[i + 1], '^(%d+),(%d+)$')
    if tonumber(seen) + tonumber(ARGV[14]) < now then
      redis.call('HDEL', key, flat[i])
    else
      others = others + tonumber(open)
    end
  end
end
local open, more = tonumber(ARGV[12]), tonumber(ARGV[13])
if limit[4] >= 0 then more = math.max(0, math.min(more, limit[4] - others - open)) end
open = open + more
if open > 0 then
  redis.call('HSET', key, 'o:' .. me, string.format('%d,%d', open, now))
else
  redis.call('HDEL', key, 'o:' .. me)
end

local function text(number) return string.format('%.17g', number) end
redis.call('HSET', key, 'rl', text(requests), 'rt', text(now), 'tl', text(tokens), 'tt', text(now),
  'd', text(day_used), 'dn', day, 'm', text(month_used), 'mn', month)
redis.call('PEXPIRE', key, 3456000000)
return {text(got_requests), text(got_tokens), open, text(requests), text(tokens), text(day_left()), text(month_left())}
