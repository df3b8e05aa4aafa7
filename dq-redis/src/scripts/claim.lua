-- Leases due jobs of several queues.
--
-- KEYS     the keys of each queue, or of each shard of it
-- ARGV     most jobs in all (at most 100), most bytes in all; then for each queue: most jobs of it,
--          or '' for another shard of the queue before; length of a lease in milliseconds
-- returns  {now, then for each queue: {when to come again or nil, end of the leases, first token,
--          then for each job: handle, due time, record, state before the lease or ''}, or a text: why
--          this queue cannot be served, which keeps nothing from the others; then, for each whose
--          layout is not the one believed in: its number from 0 and the layout}. With no bytes at
--          all nothing is leased, and each queue has {when to come again or nil, due times of the
--          oldest jobs that are due}
-- cost     O(log n) a job, and seven small commands a queue

local left, room = tonumber(ARGV[1]), tonumber(ARGV[2])
local looks = room == 0
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

-- Entries that are read, beyond those that are taken, to find the oldest among shards.
local LOOKS = 2000

local function prepare(lane)
  lane.paused, lane.large, lane.last, lane.layout =
    unpack(redis.call('HMGET', lane.meta, 'paused', 'large', 'token', 'layout'))
  lane.crowded = reclaim(lane)
end

local function look(lane, most)
  return redis.call(
    'ZRANGEBYSCORE', lane.due, '-inf', this_instant, 'WITHSCORES', 'LIMIT', '0', most)
end

-- Leases the first jobs of a lane. The second result is when the next one is due, if it is already.
local function lease_due(lane, most, length, reply)
  -- One more than wanted tells without another look that there is more.
  local entries = look(lane, most + 1)
  local found = math.min(#entries / 2, most)
  if found == 0 then
    return nil
  end
  local waiting = {}
  for i = 1, found do
    waiting[i] = entries[2 * i - 1]
  end
  local records, taken = load(lane, lane.large, waiting, found)
  local states = redis.call('HMGET', lane.state, unpack(waiting))
  local token = math.max((tonumber(lane.last or 0) or 0) + 1, micros)
  local changes, strays, n, at = {}, {}, 0, #reply
  for i = 1, taken do
    local handle, record, raw = waiting[i], records[i], states[i]
    local due = instant(entries[2 * i])
    if #handle ~= HANDLE_BYTES or not record or #record < RECORD_BYTES then
      strays[#strays + 1] = i
    else
      raw, changes[2 * n + 2] = lease_state(raw, record, token + n, due)
      changes[2 * n + 1] = handle
      reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = handle, due, record, raw
      n, at = n + 1, at + 4
    end
  end
  if #strays > 0 then
    -- Where they cannot be put, nothing is taken.
    redis.call('ZCARD', lane.stray)
  end
  -- They are the first ones of all.
  redis.call('ZREMRANGEBYRANK', lane.due, '0', taken - 1)
  for _, i in ipairs(strays) do
    stray(lane, waiting[i], instant(entries[2 * i]))
  end
  if n > 0 then
    local ends = now + length
    hold(lane, ends, changes)
    redis.call('HSET', lane.meta, 'token', string.format('%.0f', token + n - 1))
    reply[2], reply[3] = ends, string.format('%.0f', token)
    left = left - n
  end
  local upcoming = entries[2 * taken + 2]
  return upcoming and instant(upcoming)
end

-- How many entries of each of so many lanes are looked at.
local function depth(most, lanes)
  return math.min(most, math.ceil(LOOKS / lanes))
end

local function serve(lane, max, length)
  if lane.paused then
    return { false }
  end
  local reply = { false, 0, 0 }
  local most = math.min(max, left)
  local upcoming = nil
  if looks then
    local entries = most > 0 and look(lane, depth(most, #KEYS / WIDTH)) or {}
    reply = { false }
    for e = 2, #entries, 2 do
      reply[#reply + 1] = instant(entries[e])
    end
  elseif most > 0 and room > 0 then
    upcoming = lease_due(lane, most, length, reply)
  end
  if lane.crowded then
    reply[1] = now
  elseif upcoming then
    reply[1] = upcoming
  else
    local head, lapse = head_of(lane.due), head_of(lane.lease)
    reply[1] = head and lapse and math.min(head, lapse) or head or lapse or false
  end
  return reply
end

-- How many jobs each shard of one queue is to give, so that the oldest of all go.
local function shares(lanes, max)
  if #lanes == 1 then
    return { max }
  end
  local most = math.min(max, left)
  local deep = depth(most, #lanes)
  local dues, share = {}, {}
  for i, lane in ipairs(lanes) do
    local entries = deep > 0 and not lane.paused and guarded(look, lane, deep) or {}
    for e = 2, #entries, 2 do
      dues[#dues + 1] = { tonumber(entries[e]), i }
    end
    share[i] = 0
  end
  table.sort(dues, function(a, b)
    return a[1] < b[1]
  end)
  for d = 1, math.min(most, #dues) do
    local i = dues[d][2]
    share[i] = share[i] + 1
  end
  return share
end

local others = {}
local n, all = 0, #KEYS / WIDTH
while n < all do
  local max, lease = tonumber(ARGV[3 + 2 * n]), tonumber(ARGV[4 + 2 * n])
  local lanes = {}
  repeat
    local lane = lane_at(n, WIDTH)
    guarded(prepare, lane)
    if (lane.layout or '') ~= lane.belief then
      others[#others + 1], others[#others + 2] = n, lane.layout or ''
    end
    lanes[#lanes + 1] = lane
    n = n + 1
  until ARGV[3 + 2 * n] ~= ''
  local share = shares(lanes, max)
  for i, lane in ipairs(lanes) do
    replies[#replies + 1] = guarded(serve, lane, share[i], lease) or lane.refusal
  end
end
for _, other in ipairs(others) do
  replies[#replies + 1] = other
end
return replies
