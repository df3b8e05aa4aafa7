-- Leases due jobs of several queues: native ones, those in Java's target list, and, unless FAIR,
-- those due in Java's sorted set. (Whoever waits at the list is served once the script that moved
-- them has ended, so with FAIR that is another one: relay.lua.)
--
-- KEYS, ARGV, returns: as scripts/claim.lua
-- cost     O(log n) a job, and twelve small commands a queue; with order list `strict` O(length of
--          that list) for each member taken from the sorted set

local left, room = tonumber(ARGV[1]), tonumber(ARGV[2])
local issued = 0
local replies = { now }

-- A few first: if they are large, no more.
local FEW, FEW_BYTES = 8, 65536

local function some(most, fetch)
  local found = fetch(0, math.min(most, FEW))
  local bytes = 0
  for _, item in ipairs(found) do
    bytes = bytes + #item.record
  end
  if #found == FEW and most > FEW and bytes < FEW_BYTES then
    for _, item in ipairs(fetch(FEW, most - FEW)) do
      found[#found + 1] = item
    end
  end
  return found
end

-- Native jobs that are due: retries and what else was leased before.
local function native_due(lane, most)
  return some(most, function(from, number)
    local entries = redis.call('ZRANGEBYSCORE', lane.due, '-inf', now, 'WITHSCORES', 'LIMIT', from, number)
    local found = {}
    for i = 1, #entries / 2 do
      local handle = entries[2 * i - 1]
      found[i] = {
        due = tonumber(entries[2 * i]), handle = handle,
        record = redis.call('HGET', lane.job, handle) or '',
        raw = redis.call('HGET', lane.state, handle),
        leave = function() redis.call('ZREM', lane.due, handle) end,
      }
    end
    return found
  end)
end

-- Members of Java's sorted set that are due.
local function java_due(lane, most)
  return some(most, function(from, number)
    local entries = redis.call('ZRANGEBYSCORE', lane.timeout, '-inf', now, 'WITHSCORES', 'LIMIT', from, number)
    local found = {}
    for i = 1, #entries / 2 do
      local member, due = entries[2 * i - 1], tonumber(entries[2 * i])
      found[i] = { due = due, record = '', member = member }
      local format, mark, payload = parse(member)
      if format then
        local handle, tail = fold(id_of(mark))
        found[i].mark, found[i].handle = mark, handle
        local raw = redis.call('HGET', lane.outside, mark)
        if raw then
          local note = unpack_note(raw)
          found[i].handle, found[i].noted = note.handle, true
          found[i].record = note.header .. payload
        else
          found[i].record = plain_record(tail, payload)
        end
      end
    end
    return found
  end)
end

-- Payloads in Java's target list: already taken when this returns. They have no id and no due time.
local function target_due(lane, most)
  return some(most, function(_, number)
    local payloads = redis.call('LPOP', lane.target, number) or {}
    local found = {}
    for i, payload in ipairs(payloads) do
      issued = issued + 1
      local handle, tail = fold(struct.pack('>I8', micros + issued) .. 'fromlist')
      found[i] = { due = now, handle = handle, record = plain_record(tail, payload) }
    end
    return found
  end)
end

local function lease(lane, items, ends, reply)
  local token = math.max(tonumber(redis.call('HGET', lane.meta, 'token') or 0) + 1, micros)
  local leases, records, changes, n = {}, {}, {}, 0
  local gone, marks = {}, {}
  for _, item in ipairs(items) do
    if item.record == '' then
      stray(lane, item.member or item.handle, item.due)
    else
      local raw = item.raw
      local state
      if raw then
        state = unpack_state(raw)
      else
        state = { attempts = 0, deliveries = 0, losses = 0, key = record_key(item.record) }
        records[#records + 1], records[#records + 2] = item.handle, item.record
      end
      state.token, state.due = token + n, item.due
      state.deliveries = state.deliveries + 1
      leases[#leases + 1], leases[#leases + 2] = ends, item.handle
      changes[#changes + 1], changes[#changes + 2] = item.handle, pack_state(state)
      local at = #reply
      reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] =
        item.handle, item.due, item.record, raw or ''
      n = n + 1
    end
    if item.member then
      gone[#gone + 1] = item.member
      if item.noted then
        marks[#marks + 1] = item.mark
      end
      if item.mark then
        leave_order(lane, item.member, item.mark)
      else
        redis.call('LREM', lane.order, 1, item.member)
      end
    elseif item.leave then
      item.leave()
    end
  end
  if #gone > 0 then
    redis.call('ZREM', lane.timeout, unpack(gone))
    if #marks > 0 then
      redis.call('HDEL', lane.outside, unpack(marks))
    end
    sweep_order(lane, 10 * #gone)
  end
  if n > 0 then
    if #records > 0 then
      redis.call('HSET', lane.job, unpack(records))
    end
    redis.call('ZADD', lane.lease, unpack(leases))
    redis.call('HSET', lane.state, unpack(changes))
    redis.call('HSET', lane.meta, 'token', string.format('%.0f', token + n - 1))
    reply[2], reply[3] = ends, string.format('%.0f', token)
  end
  left = left - n
  return n
end

local function serve(lane, max, length)
  if redis.call('HGET', lane.meta, 'paused') then
    reclaim(lane)
    return { false }
  end
  local crowded = reclaim(lane)
  local reply = { false, 0, 0 }
  local most = math.min(max, left)
  if most > 0 and room > 0 then
    local items = target_due(lane, most)
    local others = native_due(lane, most - #items)
    if not FAIR then
      for _, item in ipairs(java_due(lane, most - #items)) do
        others[#others + 1] = item
      end
      for n, item in ipairs(others) do
        item.n = n
      end
      table.sort(others, function(a, b)
        return a.due < b.due or (a.due == b.due and a.n < b.n)
      end)
    end
    for _, item in ipairs(others) do
      if #items < most then
        items[#items + 1] = item
      end
    end
    for _, item in ipairs(items) do
      room = room - #item.record
    end
    if #items > 0 then
      lease(lane, items, now + length, reply)
    end
  end
  local next_due = head_of(lane.due)
  for _, other in ipairs({ head_of(lane.timeout) or false, head_of(lane.lease) or false }) do
    if other and (not next_due or other < next_due) then
      next_due = other
    end
  end
  if crowded or redis.call('LLEN', lane.target) > 0 then
    next_due = now
  end
  reply[1] = next_due or false
  return reply
end

for n = 0, #KEYS / WIDTH - 1 do
  local max, length = tonumber(ARGV[3 + 2 * n]), tonumber(ARGV[4 + 2 * n])
  replies[n + 2] = serve(java_at(n), max, length)
end
return replies
