-- ARGV  1 most jobs of each kind  2 deaths of its holder that park a job
-- Delayed jobs that are due wait again; leases that ran out are taken back; who waited too long is expired.
-- Gives how many of each.

local most = tonumber(ARGV[1])
local function due(key) return redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, most) end

local waiting = due(delayed)
for _, id in ipairs(waiting) do
  redis.call('ZREM', delayed, id)
  local score = redis.call('HGET', job(id), 'score')
  if score then
    redis.call('HSET', job(id), 'state', 'queued', 'changed', now)
    redis.call('ZADD', queue, score, id)
  end
end

local lost = due(leases)
for _, id in ipairs(lost) do
  redis.call('ZREM', leases, id)
  local score, queue_until, cancel = unpack(redis.call('HMGET', job(id), 'score', 'queue_until', 'cancel'))
  if score then
    local deaths = redis.call('HINCRBY', job(id), 'deaths', 1)
    if cancel then
      finish(id, 'cancelled', 0, '', 'It was cancelled.')
    elseif deaths >= tonumber(ARGV[2]) then
      finish(id, 'failed', 0, '', 'Whoever ran it died, ' .. deaths .. ' times: it is not tried again.')
    else
      redis.call('HSET', job(id), 'state', 'queued', 'changed', now)
      redis.call('ZADD', queue, score, id)
      redis.call('ZADD', deadlines, queue_until, id)
    end
  end
end

local late = due(deadlines)
for _, id in ipairs(late) do
  redis.call('ZREM', deadlines, id)
  if redis.call('EXISTS', body_of(id)) == 1 then finish(id, 'expired', 0, '', 'It was not begun in time.') end
end
return {#waiting, #lost, #late}
