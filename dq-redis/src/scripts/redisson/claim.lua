-- Leases due jobs of several queues: payloads in the destination list, native jobs, and members of
-- Redisson's sorted set. (Words: see keys.lua.)
--
-- KEYS     the keys of each queue
-- ARGV     as claim.lua; the last argument has no meaning here
-- returns  as claim.lua; a peek reports the oldest due times of each of the three sources
-- cost     O(log n) a job; eleven small commands for a queue without due jobs; with visibility
--          `exact` O(length of the order list) for each member taken from the sorted set

local leased_state = leased_state_maker(ARGV[3])

-- Candidates of one source (the destination list, the native jobs or the members), in columns: a
-- table for each job would cost the server as much as all the rest. Of each of the `count`
-- candidates:
--   handles     false in the destination list, where payloads have no id
--   records     in the destination list the payload alone, until assign_ids
--   states      state before the lease, or false
--   payloads    nil for native jobs
--   indexed     whether the index has an entry for a member's id
--   unreadable  whether another program wrote it, so that it is to be quarantined
local function columns()
  return {
    count = 0, dues = {}, handles = {}, records = {}, states = {}, payloads = {}, members = {},
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
    local before = found.count
    local added = fetch(found, before, batch)
    found.count = before + added
    for i = before + 1, found.count do
      bytes = bytes + #found.records[i]
    end
    if added < batch or bytes > bytes_left then
      break
    end
    -- The next batch is twice as large if it would fit, going by the average size so far.
    local fits = bytes * 2 * READ_BATCH < (bytes_left - bytes) * found.count
    batch = math.min(max - found.count, fits and 2 * READ_BATCH or READ_BATCH)
  end
  if found.count == 0 then
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
  return read_candidates(max, function(found, before, number)
    local payloads =
      redis.call('LRANGE', partition.destination, before, before + number - 1)
    for i, payload in ipairs(payloads) do
      local at = before + i
      found.dues[at], found.handles[at], found.states[at] = now, false, false
      found.payloads[at], found.records[at] = payload, payload
    end
    return #payloads
  end)
end

-- Reads the due entries of a sorted set into a column of the candidates (`names`) and their due times.
-- Returns how many there were.
local function read_due(found, names, zset, before, number)
  local entries = due_entries(zset, before, number)
  for i = 1, #entries / 2 do
    names[before + i], found.dues[before + i] = entries[2 * i - 1], score_time(entries[2 * i])
  end
  return #entries / 2
end

-- Reads due native jobs. Each was leased before: a job becomes native with its first lease.
local function native_candidates(partition, max)
  return read_candidates(max, function(found, before, number)
    local added = read_due(found, found.handles, partition.due, before, number)
    if added == 0 then
      return 0
    end
    local records = redis.call('HMGET', partition.job, unpack(found.handles, before + 1))
    local states = redis.call('HMGET', partition.state, unpack(found.handles, before + 1))
    for i = 1, added do
      local at, record = before + i, records[i] or ''
      found.records[at], found.states[at] = record, states[i]
      found.unreadable[at] = #found.handles[at] ~= HANDLE_BYTES or #record < RECORD_BYTES
    end
    return added
  end)
end

local function member_candidates(partition, max)
  return read_candidates(max, function(found, before, number)
    local added = read_due(found, found.members, partition.timeout, before, number)
    if added == 0 then
      return 0
    end
    for at = before + 1, before + added do
      local format, member_id, payload = parse(found.members[at])
      found.member_ids[at], found.payloads[at] = member_id or '', payload or ''
      found.unreadable[at] = not format
    end
    local index_entries = redis.call('HMGET', partition.index, unpack(found.member_ids, before + 1))
    for i = 1, added do
      local at = before + i
      local member_id, payload = found.member_ids[at], found.payloads[at]
      local handle, record_prefix = read_entry(member_id, index_entries[i])
      if not handle then
        local tail
        handle, tail = handle_and_tail(member_id)
        record_prefix = java_record(tail, '')
      end
      found.indexed[at], found.states[at] = index_entries[i] and true, false
      found.handles[at], found.records[at] = handle, record_prefix .. payload
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
  for chosen = 1, max do
    local next_native, next_member = taken[2] + 1, taken[3] + 1
    local has_native, has_member = next_native <= native.count, next_member <= members.count
    local which
    if taken[1] < destination.count then
      which = 1
    elseif has_native
      and not (has_member and members.dues[next_member] < native.dues[next_native])
    then
      which = 2
    elseif has_member then
      which = 3
    else
      break
    end
    local source, at = sources[which], taken[which] + 1
    local bytes = #source.records[at]
    if chosen > 1 and bytes > bytes_left then
      break
    end
    bytes_left = bytes_left - bytes
    taken[which] = at
    each(source, at)
  end
  return taken
end

-- Gives a new id to payloads without one, and to members whose handle a native job or another
-- candidate has, so that none overwrites another. The id is made from the token after the
-- job's, and like tokens a queue never has it twice: 8 bytes, then 'fromlist' in ASCII.
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

-- The states before the lease. A job that was a member has one only if its id is to be pinned.
local function read_first_states(partition, handles, records, states)
  for i = 1, #handles do
    if not states[i] and #records[i] >= RECORD_BYTES and is_to_be_pinned(records[i]) then
      states[i] = redis.call('HGET', partition.state, handles[i])
    end
  end
end

-- Removes the candidates taken, which are the first entries of the list and of each set, and moves
-- unreadable ones to the quarantine. The first write takes no memory: after it a server whose memory
-- is full allows the others.
local function remove_taken(partition, taken, unreadable)
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
    if candidate.member then
      quarantine_member(partition, candidate.member, candidate.due)
    else
      quarantine(partition, candidate.handle, candidate.due)
    end
  end
end

-- Everything is read before anything is written, so a key of another type changes nothing.
local function lease(partition, max_jobs, lease_end, reply)
  -- These fail if a key has another type, even if the candidates of the others are enough.
  redis.call('ZCARD', partition.timeout)
  redis.call('ZCARD', partition.due)
  max_jobs = math.min(max_jobs, max_per_call(partition))
  local destination = destination_candidates(partition, max_jobs)
  local native = native_candidates(partition, max_jobs - destination.count)
  local waiting = member_candidates(partition, max_jobs - destination.count)
  local unreadable, leases = {}, 0
  local handles, dues, records, states, payloads = {}, {}, {}, {}, {}
  local members, member_ids, indexed = {}, {}, {}
  local taken = choose({ destination, native, waiting }, max_jobs, function(source, at)
    if source.unreadable[at] then
      unreadable[#unreadable + 1] = {
        member = source.members[at], handle = source.handles[at], due = source.dues[at],
      }
      return
    end
    leases = leases + 1
    handles[leases], dues[leases] = source.handles[at], source.dues[at]
    records[leases], states[leases] = source.records[at], source.states[at]
    payloads[leases] = source.payloads[at] or false
    if source == waiting then
      members[#members + 1], member_ids[#member_ids + 1] = source.members[at], source.member_ids[at]
      if source.indexed[at] then
        indexed[#indexed + 1] = source.member_ids[at]
      end
    end
  end)
  if leases == 0 and #unreadable == 0 then
    return
  end
  local token = first_token(partition)
  assign_ids(partition, handles, records, payloads, token)
  -- This fails on a key of another type before anything is written.
  redis.call('HSTRLEN', partition.state, '')
  read_first_states(partition, handles, records, states)
  local before, leased_states = {}, {}
  for i = 1, leases do
    leased_states[2 * i - 1] = handles[i]
    before[i], leased_states[2 * i] =
      leased_state(states[i], records[i], token + i - 1, dues[i])
  end
  order_length(partition)
  if #unreadable > 0 then
    redis.call('ZCARD', partition.quarantine)
  end
  remove_taken(partition, taken, unreadable)
  if leases == 0 then
    return
  end
  send('HDEL', partition.index, indexed)
  -- `new_records` is handle, record, …, of jobs that were not native.
  local new_records, length = {}, #reply
  for i = 1, leases do
    if payloads[i] then
      new_records[#new_records + 1], new_records[#new_records + 2] = handles[i], records[i]
    end
    reply[length + 1], reply[length + 2] = handles[i], dues[i]
    reply[length + 3], reply[length + 4] = records[i], before[i]
    length = length + 4
  end
  send('HSET', partition.job, new_records)
  add_leases(partition, lease_end, leased_states)
  record_leases(partition, leases, lease_end, token, reply)
  if #members > 0 then
    remove_from_order(partition, members, member_ids)
    sweep_order(partition, members)
  end
end

local function peek(partition, max_jobs, reply)
  max_jobs = math.min(max_jobs, max_per_call(partition))
  for _ = 1, math.min(max_jobs, redis.call('LLEN', partition.destination)) do
    reply[#reply + 1] = now
  end
  for _, zset in ipairs({ partition.due, partition.timeout }) do
    local entries = due_entries(zset, 0, max_jobs)
    for i = 2, #entries, 2 do
      reply[#reply + 1] = score_time(entries[i])
    end
  end
end

return serve_partitions({ lease = lease, peek = peek, next_time = next_time })
