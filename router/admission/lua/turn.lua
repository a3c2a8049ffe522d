-- One router's turn at one pool: it says what it keeps, who joins and who leaves, and gets places for those whose turn it
-- is. All of it happens at once, whatever else is asked of Redis. Lua on Redis 6.2 and newer.
--
-- KEYS  1 pool (hash: floor, credits, epoch)    2 routers (hash: id -> epoch,held,seen_ms,capacity,waiting)
--       3-6 flows of each band (sorted set: flow -> counter)    7 counters (hash: flow -> counter, all flows)
--       8 tenants (hash: tenant -> its flows that wait)          9 what all keys of this pool begin with
-- ARGV  1 router  2 epoch, 0 to register  3 capacity  4 places it keeps  5 places it wants  6 most grants
--       7 lease_ms  8-11 least shares  12 ageing_ms  13 most share
--       then counts, each before its items: joins (band, flow, due, member), leaves (band, flow, member),
--       settlements (flow, tokens)
-- A member is `arrived|router|epoch|waiter|tokens|weight`: of equal dues the first to arrive goes first.
-- Gives [epoch or -1, places held, somebody waits, routers, capacity, waiters granted...]

if redis.replicate_commands then redis.replicate_commands() end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local pool, routers, counters, tenants, prefix = KEYS[1], KEYS[2], KEYS[7], KEYS[8], KEYS[9]
local me, epoch, lease_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[7])

-- Routers: who was not heard of for the time of a lease is gone, and its places with it.
local rows, flat = {}, redis.call('HGETALL', routers)
for i = 1, #flat, 2 do
  local e, held, seen, capacity, waiting = string.match(flat[i + 1], '^(%d+),(%-?%d+),(%d+),(%d+),(%-?%d+)$')
  local row = {epoch = tonumber(e), held = tonumber(held), seen = tonumber(seen), capacity = tonumber(capacity),
               waiting = tonumber(waiting), changed = false}
  if flat[i] ~= me and row.seen + lease_ms < now then
    redis.call('HDEL', routers, flat[i])
    redis.call('DEL', prefix .. 'grants:' .. flat[i])
  else
    rows[flat[i]] = row
  end
end

local grants_key, row, granted = prefix .. 'grants:' .. me, rows[me], {}
if epoch == 0 then
  epoch = redis.call('HINCRBY', pool, 'epoch', 1)
  row = {waiting = 0}
  rows[me] = row
  redis.call('DEL', grants_key)
  for _, key in ipairs({pool, routers, counters, tenants, KEYS[3], KEYS[4], KEYS[5], KEYS[6]}) do
    redis.call('EXPIRE', key, 86400)
  end
elseif not row or row.epoch ~= epoch then
  return {-1, 0, 0, 0, 0}
else
  granted = redis.call('LRANGE', grants_key, 0, -1)
  if #granted > 0 then redis.call('DEL', grants_key) end
end
row.epoch, row.seen, row.capacity, row.changed = epoch, now, tonumber(ARGV[3]), true
row.held = tonumber(ARGV[4]) + #granted

local state = redis.call('HMGET', pool, 'floor', 'mean', 'c0', 'c1', 'c2', 'c3', 'w0', 'w1', 'w2', 'w3')
local floor, mean = tonumber(state[1]) or 0, tonumber(state[2]) or 0
local credits, waits, changed = {}, {}, {}
for band = 0, 3 do
  credits[band], waits[band] = tonumber(state[3 + band]) or 0, tonumber(state[7 + band]) or 0
end
local function flows(band) return KEYS[3 + band] end
local function queue(band, flow) return prefix .. 'queue:' .. band .. ':' .. flow end
local function tenant_of(flow)
  local slash = string.find(flow, '/', 1, true)
  return slash and string.sub(flow, 1, slash - 1)
end
local function text(number) return string.format('%.17g', number) end

-- Who joins, leaves, and has taken more or less than it was charged.
local at = 14
local function next_arg() at = at + 1; return ARGV[at - 1] end
for _ = 1, tonumber(next_arg()) do
  local band, flow, due, member = tonumber(next_arg()), next_arg(), next_arg(), next_arg()
  if redis.call('ZADD', queue(band, flow), due, member) == 1 then
    row.waiting = row.waiting + 1
    if not redis.call('ZSCORE', flows(band), flow) then
      local counter = math.max(changed[flow] or tonumber(redis.call('HGET', counters, flow) or 0), floor)
      redis.call('ZADD', flows(band), text(counter), flow)
      changed[flow] = counter
      local tenant = tenant_of(flow)
      if tenant then redis.call('HINCRBY', tenants, tenant, 1) end
    end
  end
end
for _ = 1, tonumber(next_arg()) do
  local band, flow, member = tonumber(next_arg()), next_arg(), next_arg()
  row.waiting = row.waiting - redis.call('ZREM', queue(band, flow), member)
end
for _ = 1, tonumber(next_arg()) do
  local flow, tokens = next_arg(), tonumber(next_arg())
  local before = changed[flow] or tonumber(redis.call('HGET', counters, flow) or 'nan')
  if before == before then changed[flow] = before + tokens end
end

local held, waiting, capacity, count = 0, 0, 0, 0
for _, each in pairs(rows) do
  held, waiting, count = held + each.held, waiting + math.max(0, each.waiting), count + 1
  capacity = math.max(capacity, each.capacity)
end

-- Which band: the first that is owed its least share, else the highest that waits.
local min_shares = {[0] = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])}
local ageing_ms, most_share = tonumber(ARGV[12]), tonumber(ARGV[13])
local has = {}
for band = 0, 3 do has[band] = redis.call('ZCARD', flows(band)) > 0 end
local function choose()
  local first, owed
  for band = 0, 3 do
    if has[band] then
      first = first or band
      if credits[band] > 0 and credits[band] >= mean and (not owed or credits[band] > credits[owed]) then owed = band end
    end
  end
  return owed or first
end
local function account(band, tokens)
  mean = mean > 0 and mean + 0.1 * (tokens - mean) or tokens
  for other = 0, 3 do
    if has[other] then
      local share = min_shares[other]
      share = math.min(math.max(most_share, share), share * (1 + waits[other] / ageing_ms))
      credits[other] = math.min(credits[other] + share * tokens, 4 * mean)
    elseif other ~= band then
      credits[other] = math.min(credits[other], 0)
    end
  end
  credits[band] = math.max(credits[band] - tokens, -tokens)
end

local left = tonumber(ARGV[6])
local told = {}
while held < capacity and left > 0 and waiting > 0 do
  local band = choose()
  if not band then break end
  local top = redis.call('ZRANGE', flows(band), 0, 0, 'WITHSCORES')
  local flow, counter = top[1], tonumber(top[2])
  if not flow then
    has[band] = false
  elseif changed[flow] and math.abs(changed[flow] - counter) > 1e-9 then
    redis.call('ZADD', flows(band), text(changed[flow]), flow)
  else
    local popped = redis.call('ZPOPMIN', queue(band, flow))
    if #popped == 0 then
      redis.call('ZREM', flows(band), flow)
      local tenant = tenant_of(flow)
      if tenant and redis.call('HINCRBY', tenants, tenant, -1) <= 0 then redis.call('HDEL', tenants, tenant) end
    else
      local arrived, router, e, waiter, tokens, weight =
        string.match(popped[1], '^(%d+)|([^|]+)|(%d+)|(%d+)|([^|]+)|([^|]+)$')
      local owner = rows[router]
      if owner and owner.epoch == tonumber(e) then  -- else its router has gone, or begun anew
        tokens = tonumber(tokens)
        waits[band] = math.max(0, now - arrived / 1000)
        local tenant = tenant_of(flow)
        local rate = (tenant and math.max(1, tonumber(redis.call('HGET', tenants, tenant) or 1)) or 1) / tonumber(weight)
        account(band, tokens)
        floor = math.max(floor, counter)
        changed[flow] = counter + tokens * rate
        redis.call('ZADD', flows(band), text(changed[flow]), flow)
        owner.held, owner.waiting, owner.changed = owner.held + 1, owner.waiting - 1, true
        held, waiting, left = held + 1, waiting - 1, left - 1
        if router == me then
          granted[#granted + 1] = waiter
        else
          redis.call('RPUSH', prefix .. 'grants:' .. router, waiter)
        end
      end
    end
  end
end

-- What nobody waits for may be held for what comes. What routers that are gone have left in line goes with this.
if waiting <= 0 then
  row.held = row.held + math.max(0, math.min(tonumber(ARGV[5]), capacity - held))
  for band = 0, 3 do
    for _, flow in ipairs(redis.call('ZRANGE', flows(band), 0, 99)) do
      redis.call('DEL', queue(band, flow))
      redis.call('ZREM', flows(band), flow)
      local tenant = tenant_of(flow)
      if tenant and redis.call('HINCRBY', tenants, tenant, -1) <= 0 then redis.call('HDEL', tenants, tenant) end
    end
  end
end

for flow, counter in pairs(changed) do
  local is_waiting = false
  for band = 0, 3 do
    if redis.call('ZSCORE', flows(band), flow) then
      is_waiting = true
      redis.call('ZADD', flows(band), text(counter), flow)
    end
  end
  if is_waiting or counter > floor then
    redis.call('HSET', counters, flow, text(counter))
  else
    redis.call('HDEL', counters, flow)  -- a newcomer would begin where it stands
  end
end
for id, each in pairs(rows) do
  if each.changed then
    redis.call('HSET', routers, id,
      string.format('%d,%d,%d,%d,%d', each.epoch, each.held, each.seen, each.capacity, math.max(0, each.waiting)))
  end
end
redis.call('HSET', pool, 'floor', text(floor), 'mean', text(mean),
  'c0', text(credits[0]), 'c1', text(credits[1]), 'c2', text(credits[2]), 'c3', text(credits[3]),
  'w0', text(waits[0]), 'w1', text(waits[1]), 'w2', text(waits[2]), 'w3', text(waits[3]))

local answer = {epoch, row.held, waiting > 0 and 1 or 0, count, capacity}
for _, waiter in ipairs(granted) do answer[#answer + 1] = waiter end
return answer
