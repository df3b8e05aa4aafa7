-- Leases due jobs of several queues: payloads in the destination list, native jobs, and members of
-- Redisson's sorted set. (Words: see java.lua.)
--
-- KEYS     the keys of each queue
-- ARGV     as claim.lua; the last argument has no meaning here
-- returns  as claim.lua; a peek reports the oldest due times of each of the three sources
-- cost     O(log n) a job; eleven small commands for a queue without due jobs; with visibility
--          `exact` O(length of the order list) for each member taken from the sorted set

local jobs_left, bytes_left = tonumber(ARGV[1]), tonumber(ARGV[2])
local leased_state = leased_state_maker(ARGV[3])
local only_due_times = bytes_left == 0
local replies = { now }

-- Candidates of one source (the destination list, the native jobs or the members), in columns: a
-- table for each job would cost the server as much as all the rest. Of each of the `n` candidates:
--   handles     false in the destination list, where payloads have no id
--   records     in the destination list the payload alone, until assign_ids
--   states      state before the lease, or false
--   payloads    nil for native jobs
--   indexed     whether the index has an entry for a member's id
--   unreadable  whether another program wrote it, so that it is to be quarantined
local function columns()
  return {
    n = 0, dues = {}, handles = {}, records = {}, states = {}, payloads = {}, members = {},
    member_ids = {}, indexed = {}, unreadable = {},
  }
end

-- A source without candidates, and columns to be filled next: most sources are empty, so new tables
-- are made only once some were filled.
local no_candidates, unused = columns(), columns()

-- Reads up to `max` candidates of one source, some at a time until their bytes are more than can be
-- leased. `fetch` gets the columns and two numbers, of candidates there and of those to add; it
-- returns how many it added.
local function read_candidates(max, fetch)
  local found, bytes = unused, 0
  local batch = math.min(max, READ_BATCH)
  while batch > 0 do
    local before = found.n
    local added = fetch(found, before, batch)
    found.n = before + added
    for i = before + 1, found.n do
      bytes = bytes + #found.records[i]
    end
    if added < batch or bytes > bytes_left then
      break
    end
    -- Twice as many if they would fit, going by the average size so far.
    local fit = bytes * 2 * READ_BATCH < (bytes_left - bytes) * found.n
    batch = math.min(max - found.n, fit and 2 * READ_BATCH or READ_BATCH)
  end
  if found.n == 0 then
    return no_candidates
  end
  unused = columns()
  return found
end

local function due_entries(zset, skip, number)
  return redis.call(
    'ZRANGEBYSCORE', zset, '-inf', now_text, 'WITHSCORES', 'LIMIT', skip, number)
end

local function destination_candidates(partition, max)
  return read_candidates(max, function(found, n, number)
    local payloads = redis.call('LRANGE', partition.destination, n, n + number - 1)
    for i = 1, #payloads do
      local payload = payloads[i]
      found.dues[n + i], found.handles[n + i], found.states[n + i] = now, false, false
      found.payloads[n + i], found.records[n + i] = payload, payload
    end
    return #payloads
  end)
end

-- Due native jobs. Each was leased before: a job becomes native with its first lease.
local function native_candidates(partition, max)
  return read_candidates(max, function(found, n, number)
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
      found.records[n + i], found.states[n + i] = record, states[i]
      found.unreadable[n + i] = #found.handles[n + i] ~= HANDLE_BYTES or #record < RECORD_BYTES
    end
    return added
  end)
end

local function member_candidates(partition, max)
  return read_candidates(max, function(found, n, number)
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
      found.unreadable[n + i] = not format
    end
    local index_entries = redis.call('HMGET', partition.index, unpack(found.member_ids, n + 1))
    for i = 1, added do
      local member_id, payload = found.member_ids[n + i], found.payloads[n + i]
      local handle, record_prefix = read_entry(member_id, index_entries[i])
      if not handle then
        local tail
        handle, tail = handle_and_tail(member_id)
        record_prefix = java_record(tail, '')
      end
      found.indexed[n + i], found.states[n + i] = index_entries[i] and true, false
      found.handles[n + i], found.records[n + i] = handle, record_prefix .. payload
    end
    return added
  end)
end

-- Chooses at most `max` candidates: those of the destination list first, then the others by due
-- time, as many as fit into the bytes left, but at least one. Calls `each` with source and position
-- of each, and returns how many were chosen of each source.
local function choose(sources, max, each)
  local destination, native, members = unpack(sources)
  local taken = { 0, 0, 0 }
  for i = 1, max do
    local d, n, m = taken[1] + 1, taken[2] + 1, taken[3] + 1
    local which = 0
    if d <= destination.n then
      which = 1
    elseif n <= native.n and not (m <= members.n and members.dues[m] < native.dues[n]) then
      which = 2
    elseif m <= members.n then
      which = 3
    end
    local source, k = sources[which], which > 0 and taken[which] + 1
    if which == 0 or i > 1 and #source.records[k] > bytes_left then
      break
    end
    bytes_left = bytes_left - #source.records[k]
    taken[which] = k
    each(source, k)
  end
  return taken
end

-- Gives a new id to payloads without one, and to members whose handle a native job or another
-- candidate has, so that none overwrites another. The id is made from the job's token, which a
-- queue never issues twice: 8 bytes of token, then 'fromlist' in ASCII.
local function assign_ids(partition, handles, records, payloads, token)
  local not_native, any = {}, false
  for i = 1, #handles do
    not_native[i] = payloads[i] and handles[i] or ''
    any = any or payloads[i]
  end
  if not any then
    return
  end
  local present = redis.call('HMGET', partition.job, unpack(not_native))
  local used = {}
  for i = 1, #not_native do
    local handle = handles[i]
    if payloads[i] and (not handle or present[i] or used[handle]) then
      local tail
      handle, tail = split_id(struct.pack('>I8', token + i) .. 'fromlist')
      handles[i], records[i] = handle, java_record(tail, payloads[i])
    end
    used[handle] = true
  end
end

-- Reads the states of those of the first `n` jobs that were members and whose ids are to be pinned.
local function read_first_states(partition, handles, records, states, n)
  for i = 1, n do
    if not states[i] and #records[i] >= RECORD_BYTES and is_to_be_pinned(records[i]) then
      states[i] = redis.call('HGET', partition.state, handles[i])
    end
  end
end

-- Removes at most `max` jobs from where they wait, leases them, and adds them to the reply.
-- Everything is read before anything is written, so a key of another type changes nothing. The first
-- write takes no memory: after it a server whose memory is full allows the others.
local function lease(partition, max, last_token, lease_end, reply)
  local destination = destination_candidates(partition, max)
  local native = native_candidates(partition, max - destination.n)
  local waiting = member_candidates(partition, max - destination.n)
  local unreadable, n = {}, 0
  local handles, dues, records, states, payloads = {}, {}, {}, {}, {}
  local members, member_ids, indexed = {}, {}, {}
  local taken = choose({ destination, native, waiting }, max, function(source, k)
    if source.unreadable[k] then
      unreadable[#unreadable + 1] = { source, k }
      return
    end
    n = n + 1
    handles[n], dues[n], records[n] = source.handles[k], source.dues[k], source.records[k]
    states[n], payloads[n] = source.states[k], source.payloads[k] or false
    if source == waiting then
      members[#members + 1], member_ids[#member_ids + 1] = source.members[k], source.member_ids[k]
      if source.indexed[k] then
        indexed[#indexed + 1] = source.member_ids[k]
      end
    end
  end)
  if n == 0 and #unreadable == 0 then
    return
  end
  local token = math.max((tonumber(last_token or 0) or 0) + 1, now_micros)
  assign_ids(partition, handles, records, payloads, token)
  -- Fails on a key of another type before anything is written.
  redis.call('HSTRLEN', partition.state, '')
  read_first_states(partition, handles, records, states, n)
  local before, leased_states = {}, {}
  for i = 1, n do
    leased_states[2 * i - 1] = handles[i]
    before[i], leased_states[2 * i] =
      leased_state(states[i], records[i], token + i - 1, dues[i])
  end
  order_length(partition)
  if #unreadable > 0 then
    redis.call('ZCARD', partition.quarantine)
  end
  -- The candidates taken are the first entries of the list and of each set.
  if taken[1] > 0 then
    redis.call('LPOP', partition.destination, taken[1])
  end
  if taken[2] > 0 then
    redis.call('ZREMRANGEBYRANK', partition.due, '0', taken[2] - 1)
  end
  if taken[3] > 0 then
    redis.call('ZREMRANGEBYRANK', partition.timeout, '0', taken[3] - 1)
  end
  for _, candidate in ipairs(unreadable) do
    local source, k = candidate[1], candidate[2]
    if source == waiting then
      quarantine_member(partition, source.members[k], source.dues[k])
    else
      quarantine(partition, source.handles[k], source.dues[k])
    end
  end
  if n == 0 then
    return
  end
  send('HDEL', partition.index, indexed)
  local new_records = {}
  local stored, at = 0, #reply
  for i = 1, n do
    local handle, record, due = handles[i], records[i], dues[i]
    if payloads[i] then
      new_records[stored + 1], new_records[stored + 2] = handle, record
      stored = stored + 2
    end
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = handle, due, record, before[i]
    at = at + 4
  end
  send('HSET', partition.job, new_records)
  add_leases(partition, lease_end, leased_states)
  redis.call('HSET', partition.meta, 'token', string.format('%.0f', token + n - 1))
  reply[2], reply[3] = lease_end, string.format('%.0f', token)
  jobs_left = jobs_left - n
  if #members > 0 then
    remove_from_order(partition, members, member_ids)
    sweep_order(partition, members)
  end
end

local function add_due_times(partition, max, reply)
  for _ = 1, math.min(max, redis.call('LLEN', partition.destination)) do
    reply[#reply + 1] = now
  end
  for _, zset in ipairs({ partition.due, partition.timeout }) do
    local entries = due_entries(zset, 0, max)
    for i = 2, #entries, 2 do
      reply[#reply + 1] = score_time(entries[i])
    end
  end
end

local function serve(partition, queue_max, length)
  if not only_due_times then
    -- Fail before the first write if one of these keys has another type.
    redis.call('ZCARD', partition.timeout)
    redis.call('ZCARD', partition.due)
  end
  local paused, last_token, format =
    unpack(redis.call('HMGET', partition.meta, 'paused', 'token', 'format'))
  local refusal = refuse_format(format, 'write')
  if refusal then
    return refusal
  end
  local has_more_expired = requeue_expired(partition)
  if paused then
    return { false }
  end
  local reply = only_due_times and { false } or { false, 0, 0 }
  local max = math.min(queue_max, jobs_left, max_per_call(partition))
  if only_due_times then
    add_due_times(partition, max, reply)
  elseif max > 0 and bytes_left > 0 then
    lease(partition, max, last_token, now + length, reply)
  end
  local next_due = earliest(partition.due)
  for _, other in ipairs({ earliest(partition.timeout) or false, earliest(partition.lease) or false }) do
    if other and (not next_due or other < next_due) then
      next_due = other
    end
  end
  if has_more_expired or redis.call('LLEN', partition.destination) > 0 then
    next_due = now
  end
  reply[1] = next_due or false
  return reply
end

for n = 0, #KEYS / KEYS_PER_PARTITION - 1 do
  local queue_max, length = tonumber(ARGV[4 + 2 * n]), tonumber(ARGV[5 + 2 * n])
  local partition = partition_at(n)
  replies[n + 2] = catch_wrong_type(serve, partition, queue_max, length) or partition.refusal
end
return replies
