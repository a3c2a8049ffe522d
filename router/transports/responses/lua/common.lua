-- Before every script of responses: their keys, the time, how one is kept and forgotten. Lua on Redis 6.2 and newer.
--
-- KEYS  1 what all keys of responses begin with; they stand in one hash slot.
-- r:ID (hash: owner, record, state; of one that goes on without its client also fence, work, deaths, said, seen, cancel)
-- e:ID (stream of its events: that of number N is the entry N+1)  held (sorted set of those that run: ms since 1970, when
-- their lease ends)  of:OWNER (sorted set: when stored)  size:OWNER (hash: bytes of each record; of all, under '')

if redis.replicate_commands then redis.replicate_commands() end
local prefix = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = prefix .. 'held'
-- The events of one that runs are kept for as long as it may run.
local running_ms = 86400000
local function response(id) return prefix .. 'r:' .. id end
local function events(id) return prefix .. 'e:' .. id end

local function forget(owner, id)
  local sizes = prefix .. 'size:' .. owner
  local size = redis.call('HGET', sizes, id)
  redis.call('DEL', response(id), events(id))
  redis.call('ZREM', held, id)
  redis.call('ZREM', prefix .. 'of:' .. owner, id)
  if size then
    redis.call('HDEL', sizes, id)
    redis.call('HINCRBY', sizes, '', -size)
  end
end

-- Where an owner has more bytes than may be, the oldest go, but none that runs.
local function keep(owner, id, state, record, keep_ms, most_bytes)
  local sizes, order = prefix .. 'size:' .. owner, prefix .. 'of:' .. owner
  local before = tonumber(redis.call('HGET', sizes, id) or 0)
  redis.call('HSET', response(id), 'owner', owner, 'state', state, 'record', record)
  redis.call('PEXPIRE', response(id), keep_ms)
  redis.call('HSET', sizes, id, #record)
  redis.call('HINCRBY', sizes, '', #record - before)
  redis.call('ZADD', order, now, id)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', order, '-inf', now - keep_ms, 'LIMIT', 0, 100)) do forget(owner, old) end
  local rank = 0
  while tonumber(redis.call('HGET', sizes, '')) > tonumber(most_bytes) do
    local old = redis.call('ZRANGE', order, rank, rank)[1]
    if not old or old == id then break end
    if redis.call('ZSCORE', held, old) then rank = rank + 1 else forget(owner, old) end
  end
  redis.call('PEXPIRE', sizes, keep_ms)
  redis.call('PEXPIRE', order, keep_ms)
end

-- Does who has this fence still run it?
local function is_held(id, fence)
  return redis.call('HGET', response(id), 'fence') == fence and redis.call('ZSCORE', held, id)
end

-- The events in ARGV[at] and on, the first of which has this number. What was said before is not said twice.
local function say(id, most, first, at)
  local said = tonumber(redis.call('HGET', response(id), 'said') or 0)
  for i = at, #ARGV do
    local number = first + i - at
    if number >= said then
      redis.call('XADD', events(id), 'MAXLEN', '~', most, (number + 1) .. '-0', 'd', ARGV[i])
      said = number + 1
    end
  end
  redis.call('HSET', response(id), 'said', said)
  redis.call('PEXPIRE', events(id), running_ms)
end
