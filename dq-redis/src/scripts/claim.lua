-- Leases due jobs of several queues, the oldest of each queue first; or reports when they are due.
--
-- KEYS     the keys of each partition; the partitions of one queue follow one another
-- ARGV     1  maximum number of jobs of the call (at most 100)
--          2  maximum bytes of records, counted in partitions with large records only, of which the
--             first may be larger; 0 to peek: leases nothing and reports due times
--          3  the name of the holder of the leases (at most 255 bytes)
--          then for each partition two: the maximum number of jobs of its queue, or '' if the
--          previous partition is of the same queue; the length of a lease in milliseconds, of which
--          the first of a queue counts
--          then '1' to say in the index of queues when to look at these partitions again, else '0'
-- returns  {now, then an item for each partition}. The item is CLOSED, WRONG_TYPE or FORMAT (see
--          access.lua); {nil} for a paused partition; for a peek {next, due times of the oldest due
--          jobs …}; else {next, lease_end, first_token, then for each leased job: handle, due time,
--          record, numbers of the state before the lease or ''}
--          next         when the next job is due or a lease expires; at most `now` if more jobs
--                       are due or more leases have expired; nil if there are neither
--          lease_end    the end of all these leases, or 0
--          first_token  the fencing token of the first job; each further one is one more
-- cost     O(log n) a job; five small commands for a partition without due jobs

local jobs_left, bytes_left = tonumber(ARGV[1]), tonumber(ARGV[2])
local leased_state = leased_state_maker(ARGV[3])
local is_peek, updates_index = bytes_left == 0, ARGV[#ARGV] == '1'
local replies = { now }

-- The records of the first handles that fit in `bytes_left`, at least one; and their number.
local function load_records(partition, handles)
  local records, loaded = {}, 0
  if not partition.large then
    return redis.call('HMGET', partition.job, unpack(handles)), #handles
  end
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

-- Maximum number of entries that a call reads to find the oldest jobs among a queue's partitions.
local MAX_PEEKED = 2000

-- Reads the settings of a partition and ends expired leases. Unlike most scripts, a claim goes on
-- if there are more of them. `refusal` is the item in the reply of a partition that cannot be served.
local function prepare(partition)
  local meta = redis.call('HMGET', partition.meta, 'paused', 'large', 'token', 'format')
  partition.paused, partition.large, partition.last_token = meta[1], meta[2], meta[3]
  partition.refusal = refuse_format(meta[4], 'write')
  if partition.refusal then
    return
  end
  partition.has_more_expired, partition.refusal = requeue_expired(partition)
end

-- The first due entries of a partition: handle, due time, handle, due time, …
local function due_entries(partition, max_entries)
  return redis.call(
    'ZRANGEBYSCORE', partition.due, '-inf', now_text, 'WITHSCORES', 'LIMIT', '0', max_entries)
end

-- Leases the first due jobs of a partition and adds them to `reply`. Returns the due time of the
-- job after them if it is due already, else nil.
local function lease_due(partition, max_jobs, length, reply)
  -- One more than is leased, to know whether there are more.
  local entries = due_entries(partition, max_jobs + 1)
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
  local token = math.max((tonumber(partition.last_token or 0) or 0) + 1, now_micros)
  local leased_states = {}
  -- Numbers of entries that are no job.
  local invalid = {}
  -- How many jobs are leased.
  local n, at = 0, #reply
  for i = 1, taken do
    local handle, record = handles[i], records[i]
    local due = score_time(entries[2 * i])
    if #handle ~= HANDLE_BYTES or not record or #record < RECORD_BYTES then
      invalid[#invalid + 1] = i
    else
      local before, leased = leased_state(stored[i], record, token + n, due)
      leased_states[2 * n + 1], leased_states[2 * n + 2] = handle, leased
      reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = handle, due, record, before
      n, at = n + 1, at + 4
    end
  end
  if #invalid > 0 then
    -- Fails before anything is written if the quarantine has another type.
    redis.call('ZCARD', partition.quarantine)
  end
  -- The entries taken are the first ones of the sorted set.
  redis.call('ZREMRANGEBYRANK', partition.due, '0', taken - 1)
  for _, i in ipairs(invalid) do
    quarantine(partition, handles[i], score_time(entries[2 * i]))
  end
  if n > 0 then
    local lease_end = now + length
    add_leases(partition, lease_end, leased_states)
    redis.call('HSET', partition.meta, 'token', string.format('%.0f', token + n - 1))
    reply[2], reply[3] = lease_end, string.format('%.0f', token)
    jobs_left = jobs_left - n
  end
  local next_entry = entries[2 * taken + 2]
  return next_entry and score_time(next_entry)
end

-- The number of entries to read in each of this many partitions.
local function peek_depth(max_jobs, partitions)
  return math.min(max_jobs, math.ceil(MAX_PEEKED / partitions))
end

local function serve(partition, max_jobs, length)
  if partition.paused then
    return { false }
  end
  local reply = { false, 0, 0 }
  max_jobs = math.min(max_jobs, jobs_left)
  local next_due = nil
  if is_peek then
    local depth = peek_depth(max_jobs, #KEYS / KEYS_PER_PARTITION)
    local entries = max_jobs > 0 and due_entries(partition, depth) or {}
    reply = { false }
    for e = 2, #entries, 2 do
      reply[#reply + 1] = score_time(entries[e])
    end
  elseif max_jobs > 0 and bytes_left > 0 then
    next_due = lease_due(partition, max_jobs, length, reply)
  end
  if partition.has_more_expired then
    reply[1] = now
  elseif next_due then
    reply[1] = next_due
  else
    local first_due, first_expiry = earliest(partition.due), earliest(partition.lease)
    reply[1] = first_due and first_expiry and math.min(first_due, first_expiry)
      or first_due or first_expiry or false
  end
  return reply
end

-- The number of jobs to lease from each partition of a queue, so that its oldest ones are leased.
local function shares(partitions, max_jobs)
  if #partitions == 1 then
    return { max_jobs }
  end
  max_jobs = math.min(max_jobs, jobs_left)
  local depth = peek_depth(max_jobs, #partitions)
  -- Pairs of a due time and the number of its partition.
  local dues, share = {}, {}
  for i, partition in ipairs(partitions) do
    local peeked = depth > 0 and not partition.paused
    local entries = peeked and catch_wrong_type(due_entries, partition, depth) or {}
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

local function look_again(partition, next)
  if next then
    redis.pcall('ZADD', QUEUE_INDEX, next, partition.due)
  else
    redis.pcall('ZREM', QUEUE_INDEX, partition.due)
  end
end

local n, total = 0, math.floor(#KEYS / KEYS_PER_PARTITION)
while n < total do
  local max_jobs, length = tonumber(ARGV[4 + 2 * n]), tonumber(ARGV[5 + 2 * n])
  local partitions = {}
  repeat
    local partition = partition_at(n)
    catch_wrong_type(prepare, partition)
    partitions[#partitions + 1] = partition
    n = n + 1
  until ARGV[4 + 2 * n] ~= ''
  local share = shares(partitions, max_jobs)
  for i, partition in ipairs(partitions) do
    local reply = catch_wrong_type(serve, partition, share[i], length)
    if reply and updates_index then
      look_again(partition, reply[1])
    end
    replies[#replies + 1] = reply or partition.refusal
  end
end
return replies
