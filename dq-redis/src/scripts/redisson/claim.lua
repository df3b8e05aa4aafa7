-- Leases due jobs of several queues: native ones, those in Java's target list, and, unless FAIR,
-- those due in Java's sorted set. (Whoever waits at the list is served once the script that moved
-- them has ended, so with FAIR that is another one: relay.lua.)
--
-- KEYS, ARGV, returns: as scripts/claim.lua
-- cost     O(log n) a job, and twelve small commands a queue; with order list `strict` O(length of
--          that list) for each member taken from the sorted set

local left, room = tonumber(ARGV[1]), tonumber(ARGV[2])
local looks = room == 0
local replies = { now }

-- Jobs that may be taken are columns, not a table for each job, which would take the server as long
-- as all the rest. `n` jobs: when they are due, their handles or false, records, states before the
-- lease or false. Those that are not native have a payload, from Java's sorted set a member, its mark
-- and whether it is noted, too; those that are packed in no way that we know are foreign.
local function columns()
  return {
    n = 0, dues = {}, handles = {}, records = {}, raws = {}, payloads = {}, members = {}, marks = {},
    noted = {}, foreign = {},
  }
end

local nothing, spare = columns(), columns()

-- Fetches jobs, a few at a time: twice as many if those before were so small that they will fit.
-- `fetch` gets how many there are and how many more are wanted, and says how many it found.
local function some(most, fetch)
  local found, bytes = spare, 0
  local few = math.min(most, FEW)
  while few > 0 do
    local before = found.n
    local added = fetch(found, before, few)
    found.n = before + added
    for i = before + 1, found.n do
      bytes = bytes + #found.records[i]
    end
    if added < few or bytes > room then
      break
    end
    local fit = bytes * 2 * FEW < (room - bytes) * found.n
    few = math.min(most - found.n, fit and 2 * FEW or FEW)
  end
  if found.n == 0 then
    return nothing
  end
  spare = columns()
  return found
end

-- Members and scores of those that are due, after the first `from`.
local function due_entries(zset, from, number)
  return redis.call(
    'ZRANGEBYSCORE', zset, '-inf', now_text, 'WITHSCORES', 'LIMIT', from, number)
end

-- Payloads in Java's target list. They have no due time, and get an id once they are taken.
local function target_due(partition, most)
  return some(most, function(found, n, number)
    local payloads = redis.call('LRANGE', partition.target, n, n + number - 1)
    for i = 1, #payloads do
      local payload = payloads[i]
      found.dues[n + i], found.handles[n + i], found.raws[n + i] = now, false, false
      found.payloads[n + i], found.records[n + i] = payload, payload
    end
    return #payloads
  end)
end

-- Native jobs that are due: retries and what else was leased before.
local function native_due(partition, most)
  return some(most, function(found, n, number)
    local entries = due_entries(partition.due, n, number)
    local added = #entries / 2
    if added == 0 then
      return 0
    end
    for i = 1, added do
      found.handles[n + i], found.dues[n + i] = entries[2 * i - 1], score_time(entries[2 * i])
    end
    local records = redis.call('HMGET', partition.job, unpack(found.handles, n + 1))
    local states = redis.call('HMGET', partition.state, unpack(found.handles, n + 1))
    for i = 1, added do
      local record = records[i] or ''
      found.records[n + i], found.raws[n + i] = record, states[i]
      found.foreign[n + i] = #found.handles[n + i] ~= HANDLE_BYTES or #record < RECORD_BYTES
    end
    return added
  end)
end

-- Members of Java's sorted set that are due.
local function java_due(partition, most)
  return some(most, function(found, n, number)
    local entries = due_entries(partition.timeout, n, number)
    local added = #entries / 2
    if added == 0 then
      return 0
    end
    for i = 1, added do
      local member = entries[2 * i - 1]
      local format, mark, payload = parse(member)
      found.members[n + i], found.dues[n + i] = member, score_time(entries[2 * i])
      found.marks[n + i], found.payloads[n + i] = mark or '', payload or ''
      found.foreign[n + i] = not format
    end
    local notes = redis.call('HMGET', partition.outside, unpack(found.marks, n + 1))
    for i = 1, added do
      local mark, payload = found.marks[n + i], found.payloads[n + i]
      local handle, header = read_note(mark, notes[i])
      if not handle then
        local tail
        handle, tail = name_of(mark)
        header = plain_record(tail, '')
      end
      found.noted[n + i], found.raws[n + i] = notes[i] and true, false
      found.handles[n + i], found.records[n + i] = handle, header .. payload
    end
    return added
  end)
end

-- How many of the first jobs of each place are taken: oldest first, but what is listed before all
-- others. No more than fit, but one at least, however large. `each` is told of them in order.
local function gather(places, most, each)
  local listed, native, java = unpack(places)
  local taken = { 0, 0, 0 }
  for i = 1, most do
    local l, n, j = taken[1] + 1, taken[2] + 1, taken[3] + 1
    local at = 0
    if l <= listed.n then
      at = 1
    elseif n <= native.n and not (j <= java.n and java.dues[j] < native.dues[n]) then
      at = 2
    elseif j <= java.n then
      at = 3
    end
    local place, k = places[at], at > 0 and taken[at] + 1
    if at == 0 or i > 1 and #place.records[k] > room then
      break
    end
    room = room - #place.records[k]
    taken[at] = k
    each(place, k)
  end
  return taken
end

-- Names what has no id. So has what bears that of another job, whether by chance or by garbage: it
-- must not take that one's place. Names are made of tokens, which no partition gives out twice.
local function name(partition, handles, records, payloads, token)
  local names, new = {}, false
  for i = 1, #handles do
    names[i] = payloads[i] and handles[i] or ''
    new = new or payloads[i]
  end
  if not new then
    return
  end
  local present = redis.call('HMGET', partition.job, unpack(names))
  local used = {}
  for i = 1, #names do
    local handle = handles[i]
    if payloads[i] and (not handle or present[i] or used[handle]) then
      local tail
      handle, tail = fold(struct.pack('>I8', token + i) .. 'fromlist')
      handles[i], records[i] = handle, plain_record(tail, payloads[i])
    end
    used[handle] = true
  end
end

-- Takes jobs from where they wait, and leases them. All is read before anything is written: a key of
-- another type changes nothing. And what is written first takes no memory, after which a server that
-- is full allows the rest.
local function lease(partition, most, last, ends, reply)
  local listed = target_due(partition, most)
  local native = native_due(partition, most - listed.n)
  local java = FAIR and nothing or java_due(partition, most - listed.n)
  local strays, n = {}, 0
  local handles, dues, records, raws, payloads = {}, {}, {}, {}, {}
  local members, marks, notes = {}, {}, {}
  local taken = gather({ listed, native, java }, most, function(place, k)
    if place.foreign[k] then
      strays[#strays + 1] = { place, k }
      return
    end
    n = n + 1
    handles[n], dues[n], records[n] = place.handles[k], place.dues[k], place.records[k]
    raws[n], payloads[n] = place.raws[k], place.payloads[k] or false
    if place == java then
      members[#members + 1], marks[#marks + 1] = place.members[k], place.marks[k]
      if place.noted[k] then
        notes[#notes + 1] = place.marks[k]
      end
    end
  end)
  if n == 0 and #strays == 0 then
    return
  end
  local token = math.max((tonumber(last or 0) or 0) + 1, now_micros)
  name(partition, handles, records, payloads, token)
  redis.call('HSTRLEN', partition.state, '')
  order_length(partition)
  if #strays > 0 then
    redis.call('ZCARD', partition.quarantine)
  end
  if taken[1] > 0 then
    redis.call('LPOP', partition.target, taken[1])
  end
  -- Those of each set are the first ones of it.
  if taken[2] > 0 then
    redis.call('ZREMRANGEBYRANK', partition.due, '0', taken[2] - 1)
  end
  if taken[3] > 0 then
    redis.call('ZREMRANGEBYRANK', partition.timeout, '0', taken[3] - 1)
  end
  for _, it in ipairs(strays) do
    local place, k = it[1], it[2]
    if place == java then
      stray_member(partition, place.members[k], place.dues[k])
    else
      quarantine(partition, place.handles[k], place.dues[k])
    end
  end
  if n == 0 then
    return
  end
  if #notes > 0 then
    redis.call('HDEL', partition.outside, unpack(notes))
  end
  local new, changes = {}, {}
  local fresh, at = 0, #reply
  for i = 1, n do
    local handle, record, due = handles[i], records[i], dues[i]
    local raw, packed = lease_state(raws[i], record, token + i - 1, due)
    changes[2 * i - 1], changes[2 * i] = handle, packed
    if payloads[i] then
      new[fresh + 1], new[fresh + 2] = handle, record
      fresh = fresh + 2
    end
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = handle, due, record, raw
    at = at + 4
  end
  if fresh > 0 then
    redis.call('HSET', partition.job, unpack(new))
  end
  add_leases(partition, ends, changes)
  redis.call('HSET', partition.meta, 'token', string.format('%.0f', token + n - 1))
  reply[2], reply[3] = ends, string.format('%.0f', token)
  left = left - n
  if #members > 0 then
    leave_order(partition, members, marks)
    sweep_order(partition, members)
  end
end

-- When the oldest jobs are due, of each place as many as are wanted.
local function see(partition, most, reply)
  for _ = 1, math.min(most, redis.call('LLEN', partition.target)) do
    reply[#reply + 1] = now
  end
  for _, zset in ipairs(FAIR and { partition.due } or { partition.due, partition.timeout }) do
    local entries = due_entries(zset, 0, most)
    for i = 2, #entries, 2 do
      reply[#reply + 1] = score_time(entries[i])
    end
  end
end

local function serve(partition, max, length)
  local paused, last = unpack(redis.call('HMGET', partition.meta, 'paused', 'token'))
  -- With FAIR nothing else looks there before leases are written.
  redis.call('ZCARD', partition.timeout)
  local crowded = requeue_expired(partition)
  if paused then
    return { false }
  end
  local reply = looks and { false } or { false, 0, 0 }
  local most = math.min(max, left, at_once(partition))
  if looks then
    see(partition, most, reply)
  elseif most > 0 and room > 0 then
    lease(partition, most, last, now + length, reply)
  end
  local next_due = earliest(partition.due)
  for _, other in ipairs({ earliest(partition.timeout) or false, earliest(partition.lease) or false }) do
    if other and (not next_due or other < next_due) then
      next_due = other
    end
  end
  if crowded or redis.call('LLEN', partition.target) > 0 then
    next_due = now
  end
  reply[1] = next_due or false
  return reply
end

for n = 0, #KEYS / KEYS_PER_PARTITION - 1 do
  local max, length = tonumber(ARGV[3 + 2 * n]), tonumber(ARGV[4 + 2 * n])
  local partition = java_at(n)
  replies[n + 2] = catch_wrong_type(serve, partition, max, length) or partition.refusal
end
return replies
