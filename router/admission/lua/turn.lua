-- One router's turn at one pool: it says what it keeps, who joins and who leaves, and gets places for those whose turn it
-- is. All of it happens at once, whatever else is asked of Redis. Lua on Redis 6.2 and newer.
--
-- KEYS  1 pool (hash: floor, level, mean, credits and waits of the bands, epoch; known, from, since, until and
--         away of a gathering)
--       2 routers (hash: id -> epoch,places held,seen_ms,places there are,waiting,tokens held,tokens there are,grants told,
--         marks)
--       3-6 flows of each band (sorted set: flow -> counter)    7 counters (hash: flow -> counter, all flows)
--       8 tenants (hash: tenant -> its flows that wait)         9 claims (hash: router -> grants it has not answered for)
--       10 what all keys of this pool begin with
-- ARGV  1 router  2 epoch, 0 to register  3 places that there are  4 tokens that there are, 0 where nobody knows
--       5 places it keeps  6 tokens it keeps  7 places it wants  8 tokens it wants  9 most grants  10 lease_ms
--       11 claim_ms  12 tolerance_ms  13-16 least shares  17 ageing_ms  18 most share  19 gather_ms
--       20 its marks that stand in line  21 routers  22 places that others held  23 that it held, as it last heard
--       24 grace of each flow where a shortage begins, as a share of the tokens in use
--       then counts, each before its items: joins (band, flow, how many, then due and member of each),
--       marks (band, flow, member that goes, due and member that comes; empty where there is none),
--       leaves (band, flow, member), settlements (flow, tokens)
-- A member is `arrived|router|epoch|waiter|tokens|weight`: of equal dues the first to arrive goes first. A mark has `more`
-- for tokens: its router keeps more of this flow, who come from there on. When its turn comes nobody is placed before its
-- router has said who they are, or has stood still for as long as a claim.
-- Gives [epoch or -1, places held, tokens held, somebody waits, routers, places and tokens there are, now in ms, places
--        that others hold, waiters granted...]

if redis.replicate_commands then redis.replicate_commands() end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local pool, routers, counters, tenants, claims_key, prefix = KEYS[1], KEYS[2], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local me, epoch, lease_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[10])
local claim_ms, tolerance_ms = tonumber(ARGV[11]), tonumber(ARGV[12])
local function flows_key(band) return KEYS[3 + band] end
local function queue_key(band, flow) return prefix .. 'queue:' .. band .. ':' .. flow end
local function tenant_of(flow)
  local slash = string.find(flow, '/', 1, true)
  return slash and string.sub(flow, 1, slash - 1)
end
local function text(number) return string.format('%.17g', number) end
local function call_with_many(command, key, words)
  for first = 1, #words, 1000 do redis.call(command, key, unpack(words, first, math.min(first + 999, #words))) end
end

-- Routers: who was not heard of for the time of a lease is gone, and its places with it.
local rows, flat = {}, redis.call('HGETALL', routers)
for i = 1, #flat, 2 do
  local e, held, seen, places, waiting, tokens, room, told, marks =
    string.match(flat[i + 1], '^(%d+),(%-?%d+),(%d+),(%d+),(%-?%d+),(%-?%d+),(%d+),(%d+),(%d+)$')
  local row = {epoch = tonumber(e), held = tonumber(held), seen = tonumber(seen) or 0, places = tonumber(places),
               waiting = tonumber(waiting), tokens = tonumber(tokens), room = tonumber(room), told = tonumber(told),
               marks = tonumber(marks)}
  if row.seen > now then row.seen, row.changed = now, true end  -- the clock was set back
  if not e or flat[i] ~= me and row.seen + lease_ms < now then
    redis.call('HDEL', routers, flat[i])
    redis.call('HDEL', claims_key, flat[i])
    redis.call('DEL', prefix .. 'grants:' .. flat[i])
  else
    rows[flat[i]] = row
  end
end

local grants_key, row, granted = prefix .. 'grants:' .. me, rows[me], {}
local told_tokens, is_new = 0, epoch == 0
if is_new then
  epoch = redis.call('HINCRBY', pool, 'epoch', 1)
  row = {waiting = 0}
  rows[me] = row
  redis.call('DEL', grants_key)
  redis.call('HDEL', claims_key, me)
  for i = 1, 9 do redis.call('EXPIRE', KEYS[i], 86400) end
elseif not row or row.epoch ~= epoch then
  return {-1, 0, 0, 0, 0, 0, 0, 0, 0}
elseif row.told > 0 then
  for _, told in ipairs(redis.call('LRANGE', grants_key, 0, -1)) do
    local waiter, tokens = string.match(told, '^(%d+)|(%d+)$')
    granted[#granted + 1] = waiter
    told_tokens = told_tokens + tokens
  end
  redis.call('DEL', grants_key)
end
row.epoch, row.seen, row.places, row.room, row.told = epoch, now, tonumber(ARGV[3]), tonumber(ARGV[4]), 0
row.held, row.tokens, row.changed = tonumber(ARGV[5]) + #granted, tonumber(ARGV[6]) + told_tokens, true
row.marks = tonumber(ARGV[20])

local state = redis.call('HMGET', pool, 'floor', 'mean', 'c0', 'c1', 'c2', 'c3', 'w0', 'w1', 'w2', 'w3', 'known', 'from',
  'since', 'until', 'away',
  'level', 'short')
local level, is_short = tonumber(state[16]) or 0, state[17] == '1'
local floor, mean = tonumber(state[1]) or 0, tonumber(state[2]) or 0
local credits, waits, changed = {}, {}, {}
for band = 0, 3 do
  credits[band], waits[band] = tonumber(state[3 + band]) or 0, tonumber(state[7 + band]) or 0
end

-- Who joins, leaves, and has taken more or less than it was charged.
local at = 25
local function next_arg() at = at + 1; return ARGV[at - 1] end
local function list_flow(band, flow)
  if not redis.call('ZSCORE', flows_key(band), flow) then
    local counter = math.max(changed[flow] or tonumber(redis.call('HGET', counters, flow) or 0), floor)
    redis.call('ZADD', flows_key(band), text(counter), flow)
    changed[flow] = counter
    local tenant = tenant_of(flow)
    if tenant then redis.call('HINCRBY', tenants, tenant, 1) end
  end
end
for _ = 1, tonumber(next_arg()) do
  local band, flow, count = tonumber(next_arg()), next_arg(), tonumber(next_arg())
  local words = {}
  for i = 1, 2 * count do words[i] = next_arg() end
  row.waiting = row.waiting + count
  call_with_many('ZADD', queue_key(band, flow), words)
  list_flow(band, flow)
end
for _ = 1, tonumber(next_arg()) do
  local band, flow, before, due, member = tonumber(next_arg()), next_arg(), next_arg(), next_arg(), next_arg()
  if before ~= '' then redis.call('ZREM', queue_key(band, flow), before) end
  if member ~= '' then
    redis.call('ZADD', queue_key(band, flow), due, member)
    list_flow(band, flow)
  end
end
for _ = 1, tonumber(next_arg()) do
  local band, flow, member = tonumber(next_arg()), next_arg(), next_arg()
  row.waiting = row.waiting - redis.call('ZREM', queue_key(band, flow), member)
end
for _ = 1, tonumber(next_arg()) do
  local flow, tokens = next_arg(), tonumber(next_arg())
  local before = changed[flow] or tonumber(redis.call('HGET', counters, flow) or 'nan')
  if before == before then changed[flow] = before + tokens end
end

local held, tokens_held, waiting, marks, places, room, count = 0, 0, 0, 0, 0, 0, 0
for _, each in pairs(rows) do
  held, tokens_held, count, marks = held + each.held, tokens_held + each.tokens, count + 1, marks + each.marks
  waiting, places, room = waiting + math.max(0, each.waiting), math.max(places, each.places), math.max(room, each.room)
end

-- A gathering: who comes back from a loss knew so many routers, and how much they held. Until each of these was heard of
-- again, those who were not are taken to hold as much still, and their part of what there is at the least: they go on alone.
local known, from, since = tonumber(state[11]) or 0, tonumber(state[12]) or 0, tonumber(state[13]) or 0
local until_ms, away, num_routers = tonumber(state[14]) or 0, tonumber(state[15]) or 0, count
if is_new and (known > 0 or tonumber(ARGV[21]) > 1) then
  if known == 0 then
    known, from, since, until_ms, away = tonumber(ARGV[21]), epoch, now, now + tonumber(ARGV[19]), tonumber(ARGV[22])
  else
    known, away = math.max(known, tonumber(ARGV[21])), math.max(0, away - tonumber(ARGV[23]))
  end
  redis.call('HSET', pool, 'known', known, 'from', from, 'since', since, 'until', until_ms, 'away', away)
end
if known > 0 then
  local part, tokens_part, num_back, seen, tokens_seen = math.ceil(places / known), math.ceil(room / known), 0, 0, 0
  local presumed, tokens_presumed = part * math.max(0, known - count), tokens_part * math.max(0, known - count)
  for _, each in pairs(rows) do
    if each.epoch >= from or each.seen > since then
      num_back = num_back + 1
    else
      seen, presumed = seen + each.held, presumed + math.max(part, each.held)
      tokens_seen, tokens_presumed = tokens_seen + each.tokens, tokens_presumed + math.max(tokens_part, each.tokens)
    end
  end
  num_routers = math.max(count, known)
  if num_back >= known or now >= until_ms or until_ms > now + tonumber(ARGV[19]) then  -- the clock may be set back
    redis.call('HDEL', pool, 'known', 'from', 'since', 'until', 'away')
  else
    held, tokens_held = held + math.max(presumed, away) - seen, tokens_held + tokens_presumed - tokens_seen
  end
end

-- A grant is on its way until its router's next turn but one. Who comes after it in its flow, by more than the tolerance,
-- is held back so long, if another router has it: else it could start first. A router that stands still is waited for
-- no longer than `claim_ms`.
local claims, has_others = {}, count > 1
if has_others then
  flat = redis.call('HGETALL', claims_key)
  for i = 1, #flat, 2 do
    if rows[flat[i]] then
      claims[flat[i]] = cmsgpack.unpack(flat[i + 1])
    else
      redis.call('HDEL', claims_key, flat[i])
    end
  end
  local mine = claims[me]
  if mine then claims[me] = {told = {}, told_at = 0, sent = mine.told, sent_at = mine.told_at, changed = true} end
end
local function is_before(arrivals, since, key, arrived)
  return arrivals[key] and arrivals[key] + tolerance_ms < arrived and math.abs(now - since) < claim_ms
end
local function is_held_back(owner, key, arrived)
  for router, claim in pairs(claims) do
    if router ~= owner then
      if is_before(claim.told, claim.told_at, key, arrived) or is_before(claim.sent, claim.sent_at, key, arrived) then
        return true
      end
    end
  end
  return false
end
local function claim(router, key, arrived)
  local found = claims[router] or {told = {}, told_at = 0, sent = {}, sent_at = 0}
  local kind = router == me and 'sent' or 'told'
  if not next(found[kind]) then found[kind .. '_at'] = now end
  found[kind][key] = math.min(found[kind][key] or arrived, arrived)
  found.changed, claims[router] = true, found
end

-- Which band: the first that is owed its least share, else the highest that waits.
local min_shares = {[0] = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15]), tonumber(ARGV[16])}
local ageing_ms, most_share = tonumber(ARGV[17]), tonumber(ARGV[18])
local has = {}
for band = 0, 3 do has[band] = redis.call('EXISTS', flows_key(band)) == 1 end
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

-- A shortage that has just begun is borne by all flows alike: up to a counter of `level` the earliest due goes first.
if waiting + marks > 0 and not is_short then level = floor + tokens_held * tonumber(ARGV[24]) end

-- A band's flows by turn, read from Redis by counter, a few at a time; `most` is the counter of the last one read.
local lists = {}
local function is_earlier(one, other)
  if one.turn ~= other.turn then return one.turn < other.turn end
  if one.due ~= other.due then return one.due < other.due end
  return one.member < other.member
end
local function insert(list, flow, counter)
  local entry = {flow = flow, counter = counter, turn = math.max(counter, level), due = 0, member = ''}
  if counter <= level then
    local head = redis.call('ZRANGE', queue_key(list.band, flow), 0, 0, 'WITHSCORES')
    if head[1] then entry.member, entry.due = head[1], tonumber(head[2]) end
  end
  local first, last = 1, #list + 1
  while first < last do
    local middle = math.floor((first + last) / 2)
    if is_earlier(entry, list[middle]) then last = middle else first = middle + 1 end
  end
  table.insert(list, first, entry)
end
local function read_more(list)
  flat = redis.call('ZRANGE', list.key, list.num_read, list.num_read + 31, 'WITHSCORES')
  for i = 1, #flat, 2 do insert(list, flat[i], changed[flat[i]] or tonumber(flat[i + 1])) end
  list.num_read = list.num_read + #flat / 2
  list.most = #flat < 64 and math.huge or tonumber(flat[64])
end
local function is_read(list, head)  -- of those up to the level not more than the first few are compared
  if list.most == math.huge then return true end
  if list.most < level then return head and list.num_read >= 64 end
  return head and head.turn <= list.most
end
local function lowest(band)
  local list = lists[band] or {band = band, key = flows_key(band), num_read = 0, most = -math.huge}
  lists[band] = list
  while true do
    local head = list[1]
    if head and (head.is_popped or changed[head.flow] and changed[head.flow] ~= head.counter) then
      table.remove(list, 1)
      insert(list, head.flow, changed[head.flow] or head.counter)
    elseif is_read(list, head) then
      return list, head
    else
      read_more(list)
    end
  end
end
local tenant_flows = {}
local function rate(flow, weight)  -- a tenant's flows share its weight
  local tenant = tenant_of(flow)
  if not tenant then return 1 / weight end
  local flows = tenant_flows[tenant] or math.max(1, tonumber(redis.call('HGET', tenants, tenant) or 1))
  tenant_flows[tenant] = flows
  return flows / weight
end
local function forget(band, flow)
  redis.call('ZREM', flows_key(band), flow)
  local tenant = tenant_of(flow)
  if tenant then
    if redis.call('HINCRBY', tenants, tenant, -1) <= 0 then redis.call('HDEL', tenants, tenant) end
    tenant_flows[tenant] = nil
  end
end

local left, is_stopped = tonumber(ARGV[9]), false
while held < places and left > 0 and waiting + marks > 0 and not is_stopped do
  local band = choose()
  if not band then break end
  local list, head = lowest(band)
  if not head then
    has[band] = false
  else
    local flow, counter = head.flow, head.counter
    local popped = redis.call('ZPOPMIN', queue_key(band, flow))
    head.is_popped = true
    if #popped == 0 then
      table.remove(list, 1)
      list.num_read = list.num_read - 1
      forget(band, flow)
    else
      local arrived, router, e, waiter, tokens, weight =
        string.match(popped[1], '^(%d+)|([^|]+)|(%d+)|(%d+)|([^|]+)|([^|]+)$')
      local owner, key = rows[router], band .. ':' .. flow
      arrived = arrived / 1000
      local is_current = owner and owner.epoch == tonumber(e)  -- else its router has gone, or begun anew
      if is_current and tokens == 'more' then
        if router == me then
          granted[#granted + 1] = waiter  -- it knows that this is a mark
          is_stopped = has_others
        elseif now - owner.seen < claim_ms then
          redis.call('ZADD', queue_key(band, flow), popped[2], popped[1])
          is_stopped = true
        end
      elseif is_current then
        tokens = tonumber(tokens)
        if (room > 0 and tokens_held > 0 and tokens_held + tokens > room)
            or (has_others and is_held_back(router, key, arrived)) then
          redis.call('ZADD', queue_key(band, flow), popped[2], popped[1])
          is_stopped = true
        else
          waits[band] = math.max(0, now - arrived)
          account(band, tokens)
          floor = math.max(floor, counter)
          changed[flow] = counter + tokens * rate(flow, tonumber(weight))
          owner.held, owner.waiting, owner.tokens = owner.held + 1, owner.waiting - 1, owner.tokens + tokens
          owner.changed = true
          held, tokens_held, waiting, left = held + 1, tokens_held + tokens, waiting - 1, left - 1
          if has_others then claim(router, key, arrived) end
          if router == me then
            granted[#granted + 1] = waiter
          else
            redis.call('RPUSH', prefix .. 'grants:' .. router, waiter .. '|' .. tokens)
            owner.told = owner.told + 1
          end
        end
      end
    end
  end
end

-- What nobody waits for may be held for what comes. What routers that are gone have left in line goes with this.
if waiting + marks <= 0 then
  if not has_others then redis.call('DEL', claims_key) end
  row.held = row.held + math.max(0, math.min(tonumber(ARGV[7]), places - held))
  if room > 0 then row.tokens = row.tokens + math.max(0, math.min(tonumber(ARGV[8]), room - tokens_held)) end
  for band = 0, 3 do
    for _, flow in ipairs(redis.call('ZRANGE', flows_key(band), 0, 99)) do
      redis.call('DEL', queue_key(band, flow))
      forget(band, flow)
    end
  end
end

local scores, kept, dropped = {}, {}, {}
for flow, counter in pairs(changed) do
  scores[#scores + 1], scores[#scores + 2] = text(counter), flow
  local is_waiting = counter > floor
  for band = 0, 3 do is_waiting = is_waiting or redis.call('ZSCORE', flows_key(band), flow) end
  if is_waiting then
    kept[#kept + 1], kept[#kept + 2] = flow, text(counter)
  else
    dropped[#dropped + 1] = flow  -- a newcomer would begin where it stands
  end
end
call_with_many('HSET', counters, kept)
call_with_many('HDEL', counters, dropped)
for band = 0, 3 do
  if redis.call('EXISTS', flows_key(band)) == 1 then
    for first = 1, #scores, 1000 do
      redis.call('ZADD', flows_key(band), 'XX', unpack(scores, first, math.min(first + 999, #scores)))
    end
  end
end
for id, each in pairs(rows) do
  if each.changed then
    redis.call('HSET', routers, id, string.format('%d,%d,%d,%d,%d,%d,%d,%d,%d', each.epoch, each.held, each.seen, each.places,
      math.max(0, each.waiting), each.tokens, each.room, each.told, each.marks))
  end
end
for router, each in pairs(claims) do
  if each.changed then
    each.changed = nil
    if next(each.told) or next(each.sent) then
      redis.call('HSET', claims_key, router, cmsgpack.pack(each))
    else
      redis.call('HDEL', claims_key, router)
    end
  end
end
redis.call('HSET', pool, 'floor', text(floor), 'mean', text(mean), 'level', text(level),
  'short', waiting + marks > 0 and 1 or 0,
  'c0', text(credits[0]), 'c1', text(credits[1]), 'c2', text(credits[2]), 'c3', text(credits[3]),
  'w0', text(waits[0]), 'w1', text(waits[1]), 'w2', text(waits[2]), 'w3', text(waits[3]))

local answer = {epoch, row.held, row.tokens, waiting + marks > 0 and 1 or 0, num_routers, places, room, now,
  math.max(0, held - row.held)}
for _, waiter in ipairs(granted) do answer[#answer + 1] = waiter end
return answer
