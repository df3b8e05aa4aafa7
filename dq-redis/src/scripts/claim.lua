-- Leases due jobs of several queues.
--
-- KEYS     the keys of each queue
-- ARGV     most jobs in all (at most 100), most bytes in all; then for each queue: most jobs of it,
--          length of a lease in milliseconds
-- returns  {now, then for each queue: {when to come again or nil, end of the leases, first token,
--          then for each job: handle, due time, record, state before the lease or ''}, or a text: why
--          this queue cannot be served, which keeps nothing from the others}
-- cost     O(log n) a job, and six small commands a queue

local left, room = tonumber(ARGV[1]), tonumber(ARGV[2])
local replies = { now }

-- The jobs of a lane whose bytes fit. At least one, however large.
local function load(lane, waiting, most)
  local records, taken = {}, 0
  local large = redis.call('HGET', lane.meta, 'large')
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

local function serve(lane, max, lease)
  if redis.call('HGET', lane.meta, 'paused') then
    reclaim(lane)
    return { false }
  end
  local crowded = reclaim(lane)
  local reply = { false, 0, 0 }
  local most = math.min(max, left)
  local cut = false
  if most > 0 and room > 0 then
    local entries =
      redis.call('ZRANGEBYSCORE', lane.due, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
    if #entries > 0 then
      local waiting = {}
      for i = 1, #entries / 2 do
        waiting[i] = entries[2 * i - 1]
      end
      local records, taken = load(lane, waiting, #waiting)
      cut = taken < #waiting
      local states = redis.call('HMGET', lane.state, unpack(waiting))
      local token = math.max((tonumber(redis.call('HGET', lane.meta, 'token') or 0) or 0) + 1, micros)
      local until_ = now + lease
      local gone, leases, changes, n = {}, {}, {}, 0
      for i = 1, taken do
        local handle, due = waiting[i], instant(entries[2 * i])
        gone[#gone + 1] = handle
        if #handle ~= HANDLE_BYTES or not records[i] or #records[i] < RECORD_BYTES then
          stray(lane, handle, due)
        else
          local raw = states[i]
          local state = unpack_state(raw)
          if not state then
            raw, state = '', fresh_state(records[i], due)
          end
          state.token, state.due = token + n, due
          state.deliveries = state.deliveries + 1
          leases[#leases + 1] = until_
          leases[#leases + 1] = handle
          changes[#changes + 1] = handle
          changes[#changes + 1] = pack_state(state)
          local at = #reply
          reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] =
            handle, due, records[i], raw
          n = n + 1
        end
      end
      redis.call('ZREM', lane.due, unpack(gone))
      if n > 0 then
        redis.call('ZADD', lane.lease, unpack(leases))
        redis.call('HSET', lane.state, unpack(changes))
        redis.call('HSET', lane.meta, 'token', string.format('%.0f', token + n - 1))
        reply[2], reply[3] = until_, string.format('%.0f', token)
        left = left - n
      end
    end
  end
  local head, lapse = head_of(lane.due), head_of(lane.lease)
  if crowded or cut then
    reply[1] = now
  elseif head and lapse then
    reply[1] = math.min(head, lapse)
  else
    reply[1] = head or lapse or false
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
