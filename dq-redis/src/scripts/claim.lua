-- Leases due jobs of several queues, the oldest of each queue first; or reports when they are due.
--
-- KEYS     the keys of each partition; the partitions of one queue follow one another
-- ARGV     1  maximum number of jobs of the call (at most 100)
--          2  maximum bytes of records, counted in partitions with large records only, of which the
--             first may be larger; 0 to peek: leases nothing and reports due times
--          3  the name of the holder of the leases (at most 255 bytes)
--          then for each partition three, of which the first ones of a queue count: the maximum
--          number of jobs of its queue, or '' if the previous partition is of the same queue; how many
--          of them would start at once; the length of a lease in milliseconds
--          then '1' to say in the index of queues when to look at these partitions again, else '0'
-- returns  {now, then an item for each partition}. The item is CLOSED, WRONG_TYPE or FORMAT (see
--          access.lua); {nil} for a paused partition; for a peek {next, due times of the oldest due
--          jobs …}; else {next, lease_end, first_token, then for each leased job: handle, due time,
--          record, numbers of the state before the lease or ''}
--          next         when the next job is due or a lease expires; at most `now` if more jobs
--                       are due or more leases have expired; nil if there are neither. In a queue
--                       with limits, when a job may start instead of when it is due
--          lease_end    the end of all these leases, or 0
--          first_token  the fencing token of the first job; each further one is one more
-- cost     O(log n) a job; five small commands for a partition without due jobs; with limits eight

local leased_state = leased_state_maker(ARGV[3])

-- The records of the first handles that fit in `bytes_left`, at least one; and their number.
local function load_records(partition, handles)
  if not partition.large then
    return partition.records or redis.call('HMGET', partition.job, unpack(handles)), #handles
  end
  local records, loaded = {}, 0
  for i = 1, #handles do
    local bytes = redis.call('HSTRLEN', partition.job, handles[i])
    if loaded > 0 and bytes > bytes_left then
      break
    end
    bytes_left = bytes_left - bytes
    loaded = loaded + 1
    records[i] = redis.call('HGET', partition.job, handles[i])
  end
  return records, loaded
end

-- The first due entries of a partition: handle, due time, handle, due time, …
local function due_entries(partition, max_entries)
  return redis.call(
    'ZRANGEBYSCORE', partition.due, '-inf', now_text, 'WITHSCORES', 'LIMIT', '0', max_entries)
end

local function peek(partition, max_jobs, reply)
  local entries = due_entries(partition, max_jobs)
  for i = 2, #entries, 2 do
    reply[#reply + 1] = score_time(entries[i])
  end
end

local function lease(partition, max_jobs, lease_end, reply)
  -- One entry more is read than leased, to know whether there are more, unless the gate has read them.
  local entries = partition.admitted or due_entries(partition, max_jobs + 1)
  local found = math.min(#entries / 2, max_jobs)
  if found == 0 then
    return nil
  end
  local handles = {}
  for i = 1, found do
    handles[i] = entries[2 * i - 1]
  end
  local records, taken = load_records(partition, handles)
  local stored = redis.call('HMGET', partition.state, unpack(handles))
  local token = first_token(partition)
  -- `leased_states` is handle, state, …; `invalid` has the numbers of entries that are no job.
  local leases, leased_states, invalid = 0, {}, {}
  local length = #reply
  for i = 1, taken do
    local handle, record = handles[i], records[i]
    local due = score_time(entries[2 * i])
    if #handle ~= HANDLE_BYTES or not record or #record < RECORD_BYTES then
      invalid[#invalid + 1] = i
    else
      local before, leased = leased_state(stored[i], record, token + leases, due)
      leased_states[2 * leases + 1], leased_states[2 * leases + 2] = handle, leased
      reply[length + 1], reply[length + 2] = handle, due
      reply[length + 3], reply[length + 4] = record, before
      leases, length = leases + 1, length + 4
    end
  end
  if #invalid > 0 then
    -- This fails before anything is written if the quarantine has another type.
    redis.call('ZCARD', partition.quarantine)
  end
  -- The entries taken are the first ones of the sorted set.
  redis.call('ZREMRANGEBYRANK', partition.due, '0', taken - 1)
  for _, i in ipairs(invalid) do
    quarantine(partition, handles[i], score_time(entries[2 * i]))
  end
  if leases > 0 then
    add_leases(partition, lease_end, leased_states)
    record_leases(partition, leases, lease_end, token, reply)
  end
  local next_entry = entries[2 * taken + 2]
  return next_entry and score_time(next_entry)
end

-- The number of jobs to lease from each partition of a queue, so that its oldest ones are leased.
local function shares(partitions, max_jobs)
  max_jobs = math.min(max_jobs, jobs_left)
  local depth = math.min(max_jobs, math.ceil(MAX_PEEKED / #partitions))
  -- Pairs of a due time and the number of its partition.
  local dues, share = {}, {}
  for i, partition in ipairs(partitions) do
    local is_peeked = depth > 0 and not partition.paused
    local entries = is_peeked and catch_wrong_type(due_entries, partition, depth) or {}
    for e = 2, #entries, 2 do
      dues[#dues + 1] = { tonumber(entries[e]), i }
    end
    share[i] = 0
  end
  table.sort(dues, function(a, b)
    return a[1] < b[1]
  end)
  for d = 1, math.min(max_jobs, #dues) do
    local i = dues[d][2]
    share[i] = share[i] + 1
  end
  return share
end

return serve_partitions({ lease = lease, peek = peek, next_time = next_time, shares = shares })
