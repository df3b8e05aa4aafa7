-- Leases due jobs of several queues.
--
-- KEYS     the keys of each queue
-- ARGV     most jobs in all (at most 100), most bytes in all; then for each queue: most jobs of it,
--          length of a lease in milliseconds
-- returns  {now, then for each queue: {when to come again or nil, end of the leases, first token,
--          then for each job: handle, due time, record, state before the lease or ''}, or a text: why
--          this queue cannot be served, which keeps nothing from the others}
-- cost     O(log n) a job, and seven small commands a queue

local left, room = tonumber(ARGV[1]), tonumber(ARGV[2])
local replies = { now }

-- The jobs of a lane whose bytes fit. At least one, however large.
local function load(lane, large, waiting, most)
  local records, taken = {}, 0
  if not large then
    return redis.call('HMGET', lane.job, unpack(waiting)), most
  end
  for i = 1, most do
    local bytes = redis.call('HSTRLEN', lane.job, waiting[i])
    if taken > 0 and bytes > room then
      break
    end
    room = room - bytes
    taken = taken + 1
    records[i] = redis.call('HGET', lane.job, waiting[i])
  end
  return records, taken
end

-- Leases the first jobs of a lane. The second result is when the next one is due, if it is already.
local function lease_due(lane, most, length, large, last, reply)
  -- One more than wanted tells without another look that there is more.
  local entries =
    redis.call('ZRANGEBYSCORE', lane.due, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most + 1)
  local found = math.min(#entries / 2, most)
  if found == 0 then
    return nil
  end
  local waiting = {}
  for i = 1, found do
    waiting[i] = entries[2 * i - 1]
  end
  local records, taken = load(lane, large, waiting, found)
  local states = redis.call('HMGET', lane.state, unpack(waiting))
  local token = math.max((tonumber(last or 0) or 0) + 1, micros)
  local ends = now + length
  local changes, n, at = {}, 0, #reply
  for i = 1, taken do
    local handle, record, raw = waiting[i], records[i], states[i]
    local due = instant(entries[2 * i])
    if #handle ~= HANDLE_BYTES or not record or #record < RECORD_BYTES then
      stray(lane, handle, due)
    else
      local state = unpack_state(raw)
      if state then
        state.token, state.due = token + n, due
        state.deliveries = state.deliveries + 1
        changes[2 * n + 2] = pack_state(state)
      else
        raw = ''
        changes[2 * n + 2] = struct.pack(STATE, token + n, due, 0, 1, 0) .. record_key(record)
      end
      changes[2 * n + 1] = handle
      reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = handle, due, record, raw
      n, at = n + 1, at + 4
    end
  end
  redis.call('ZREM', lane.due, unpack(waiting, 1, taken))
  if n > 0 then
    hold(lane, ends, changes)
    redis.call('HSET', lane.meta, 'token', string.format('%.0f', token + n - 1))
    reply[2], reply[3] = ends, string.format('%.0f', token)
    left = left - n
  end
  local upcoming = entries[2 * taken + 2]
  return upcoming and instant(upcoming)
end

local function serve(lane, max, length)
  local paused, large, last = unpack(redis.call('HMGET', lane.meta, 'paused', 'large', 'token'))
  local crowded = reclaim(lane)
  if paused then
    return { false }
  end
  local reply = { false, 0, 0 }
  local most = math.min(max, left)
  local upcoming = nil
  if most > 0 and room > 0 then
    upcoming = lease_due(lane, most, length, large, last, reply)
  end
  if crowded then
    reply[1] = now
  elseif upcoming then
    reply[1] = upcoming
  else
    local head, lapse = head_of(lane.due), head_of(lane.lease)
    reply[1] = head and lapse and math.min(head, lapse) or head or lapse or false
  end
  return reply
end

for n = 0, #KEYS / WIDTH - 1 do
  local max, lease = tonumber(ARGV[3 + 2 * n]), tonumber(ARGV[4 + 2 * n])
  local served, reply = pcall(serve, lane_at(n, WIDTH), max, lease)
  if not served then
    local why = type(reply) == 'table' and reply.err or tostring(reply)
    if not string.find(why, 'WRONGTYPE', 1, true) then
      error(reply, 0)
    end
    reply = why
  end
  replies[n + 2] = reply
end
return replies
