-- Leases due jobs of several queues: native ones, those in Java's target list, and those in Java's
-- sorted set.
--
-- KEYS, ARGV, returns: as scripts/claim.lua
-- cost     O(log n) a job, and twelve small commands a queue; with visibility `exact` O(length of the
--          order list) for each member taken from the sorted set

local left, room = tonumber(ARGV[1]), tonumber(ARGV[2])
local only_due_times = room == 0
local replies = { now }

-- Candidates of one source, in columns: a table for each job would cost the server as much as all the
-- rest. `n` candidates with due times, handles (or false), records, and states before the lease (or
-- false). Those that are not native also have a payload; those of Java's sorted set also a member, its
-- member id, and whether it is in the index. Entries that cannot be read are foreign.
local function columns()
  return {
    n = 0, dues = {}, handles = {}, records = {}, raws = {}, payloads = {}, members = {},
    member_ids = {}, indexed = {}, foreign = {},
  }
end

local none, spare = columns(), columns()

-- Reads candidates a few at a time, twice as many while they are small enough to fit. `fetch` gets the
-- columns, how many they hold, and how many more to read; it returns how many it read.
local function read_candidates(most, fetch)
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
    return none
  end
  spare = columns()
  return found
end

-- Members and scores of due entries, without the first `from`.
local function due_entries(zset, from, number)
  return redis.call(
    'ZRANGEBYSCORE', zset, '-inf', now_text, 'WITHSCORES', 'LIMIT', from, number)
end

-- Payloads in Java's target list. They have no due time, and get an id when they are leased.
local function target_due(partition, most)
  return read_candidates(most, function(found, n, number)
    local payloads = redis.call('LRANGE', partition.target, n, n + number - 1)
    for i = 1, #payloads do
      local payload = payloads[i]
      found.dues[n + i], found.handles[n + i], found.raws[n + i] = now, false, false
      found.payloads[n + i], found.records[n + i] = payload, payload
    end
    return #payloads
  end)
end

-- Due native jobs: all that were leased before.
local function native_due(partition, most)
  return read_candidates(most, function(found, n, number)
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

-- Due members of Java's sorted set.
local function java_due(partition, most)
  return read_candidates(most, function(found, n, number)
    local entries = due_entries(partition.timeout, n, number)
    local added = #entries / 2
    if added == 0 then
      return 0
    end
    for i = 1, added do
      local member = entries[2 * i - 1]
      local format, member_id, payload = parse(member)
      found.members[n + i], found.dues[n + i] = member, score_time(entries[2 * i])
      found.member_ids[n + i], found.payloads[n + i] = member_id or '', payload or ''
      found.foreign[n + i] = not format
    end
    local index_entries = redis.call('HMGET', partition.index, unpack(found.member_ids, n + 1))
    for i = 1, added do
      local member_id, payload = found.member_ids[n + i], found.payloads[n + i]
      local handle, header = read_entry(member_id, index_entries[i])
      if not handle then
        local tail
        handle, tail = handle_and_tail(member_id)
        header = java_record(tail, '')
      end
      found.indexed[n + i], found.raws[n + i] = index_entries[i] and true, false
      found.handles[n + i], found.records[n + i] = handle, header .. payload
    end
    return added
  end)
end

-- Chooses candidates: those of the target list first, then the oldest, as many as fit, but at least
-- one. Calls `each` for each in order, and returns how many were chosen of each source.
local function choose(sources, most, each)
  local listed, native, java = unpack(sources)
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
    local source, k = sources[at], at > 0 and taken[at] + 1
    if at == 0 or i > 1 and #source.records[k] > room then
      break
    end
    room = room - #source.records[k]
    taken[at] = k
    each(source, k)
  end
  return taken
end

-- Gives an id to jobs without one, and to those whose id another job has, so that none replaces
-- another. Ids are made from tokens, which a queue never issues twice.
local function assign_ids(partition, handles, records, payloads, token)
  local own, new = {}, false
  for i = 1, #handles do
    own[i] = payloads[i] and handles[i] or ''
    new = new or payloads[i]
  end
  if not new then
    return
  end
  local present = redis.call('HMGET', partition.job, unpack(own))
  local used = {}
  for i = 1, #own do
    local handle = handles[i]
    if payloads[i] and (not handle or present[i] or used[handle]) then
      local tail
      handle, tail = split_id(struct.pack('>I8', token + i) .. 'fromlist')
      handles[i], records[i] = handle, java_record(tail, payloads[i])
    end
    used[handle] = true
  end
end

-- Removes jobs from where they wait and leases them. Everything is read before anything is written, so
-- a key of another type changes nothing. The first write takes no memory: after it a server whose
-- memory is full allows the others.
local function lease(partition, most, last, ends, reply)
  local listed = target_due(partition, most)
  local native = native_due(partition, most - listed.n)
  local java = java_due(partition, most - listed.n)
  local foreign, n = {}, 0
  local handles, dues, records, raws, payloads = {}, {}, {}, {}, {}
  local members, member_ids, indexed = {}, {}, {}
  local taken = choose({ listed, native, java }, most, function(source, k)
    if source.foreign[k] then
      foreign[#foreign + 1] = { source, k }
      return
    end
    n = n + 1
    handles[n], dues[n], records[n] = source.handles[k], source.dues[k], source.records[k]
    raws[n], payloads[n] = source.raws[k], source.payloads[k] or false
    if source == java then
      members[#members + 1], member_ids[#member_ids + 1] = source.members[k], source.member_ids[k]
      if source.indexed[k] then
        indexed[#indexed + 1] = source.member_ids[k]
      end
    end
  end)
  if n == 0 and #foreign == 0 then
    return
  end
  local token = math.max((tonumber(last or 0) or 0) + 1, now_micros)
  assign_ids(partition, handles, records, payloads, token)
  redis.call('HSTRLEN', partition.state, '')
  order_length(partition)
  if #foreign > 0 then
    redis.call('ZCARD', partition.quarantine)
  end
  if taken[1] > 0 then
    redis.call('LPOP', partition.target, taken[1])
  end
  -- The candidates of a set are its first members.
  if taken[2] > 0 then
    redis.call('ZREMRANGEBYRANK', partition.due, '0', taken[2] - 1)
  end
  if taken[3] > 0 then
    redis.call('ZREMRANGEBYRANK', partition.timeout, '0', taken[3] - 1)
  end
  for _, candidate in ipairs(foreign) do
    local source, k = candidate[1], candidate[2]
    if source == java then
      quarantine_member(partition, source.members[k], source.dues[k])
    else
      quarantine(partition, source.handles[k], source.dues[k])
    end
  end
  if n == 0 then
    return
  end
  if #indexed > 0 then
    redis.call('HDEL', partition.index, unpack(indexed))
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
    remove_from_order(partition, members, member_ids)
    sweep_order(partition, members)
  end
end

-- Adds the due times of the oldest due jobs of each source, up to `most` of each.
local function add_due_times(partition, most, reply)
  for _ = 1, math.min(most, redis.call('LLEN', partition.target)) do
    reply[#reply + 1] = now
  end
  for _, zset in ipairs({ partition.due, partition.timeout }) do
    local entries = due_entries(zset, 0, most)
    for i = 2, #entries, 2 do
      reply[#reply + 1] = score_time(entries[i])
    end
  end
end

local function serve(partition, max, length)
  local paused, last = unpack(redis.call('HMGET', partition.meta, 'paused', 'token'))
  local crowded = requeue_expired(partition)
  if paused then
    return { false }
  end
  local reply = only_due_times and { false } or { false, 0, 0 }
  local most = math.min(max, left, max_per_call(partition))
  if only_due_times then
    add_due_times(partition, most, reply)
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
  local partition = redisson_partition_at(n)
  replies[n + 2] = catch_wrong_type(serve, partition, max, length) or partition.refusal
end
return replies
