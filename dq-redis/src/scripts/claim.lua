-- Leases due jobs of several queues.
--
-- KEYS     the keys of each partition; those of one queue are together
-- ARGV     most jobs in all (at most 100), most bytes in all; then for each partition: most jobs of its
--          queue, or '' for a further partition of the queue before; length of a lease in milliseconds
-- returns  {now, then for each partition: {time of the next claim or nil, end of the leases, first token,
--          then for each job: handle, due time, record, state before the lease or ''}, or CLOSED or
--          WRONG_TYPE if this partition cannot be served}. With 0 as most bytes nothing is leased, and
--          each partition has {time of the next claim or nil, due times of its oldest due jobs}
-- cost     O(log n) a job, and seven small commands a partition

local jobs_left, bytes_left = tonumber(ARGV[1]), tonumber(ARGV[2])
local only_peek = bytes_left == 0
local replies = { now }

-- The records that fit, at least one, and how many they are.
local function load_records(partition, handles, most)
  local records, loaded = {}, 0
  if not partition.large then
    return redis.call('HMGET', partition.job, unpack(handles)), most
  end
  for i = 1, most do
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

-- Most entries that a call reads to find the oldest jobs among the partitions of a queue.
local MAX_PEEKED = 2000

local function prepare(partition)
  partition.paused, partition.large, partition.last_token =
    unpack(redis.call('HMGET', partition.meta, 'paused', 'large', 'token'))
  partition.has_more_expired, partition.refusal = requeue_expired(partition)
end

local function due_entries(partition, most)
  return redis.call(
    'ZRANGEBYSCORE', partition.due, '-inf', now_text, 'WITHSCORES', 'LIMIT', '0', most)
end

-- Leases the first due jobs of a partition. Returns the due time of the next one if it is due already.
local function lease_due(partition, most, length, reply)
  -- One more than wanted shows whether there are more.
  local entries = due_entries(partition, most + 1)
  local found = math.min(#entries / 2, most)
  if found == 0 then
    return nil
  end
  local handles = {}
  for i = 1, found do
    handles[i] = entries[2 * i - 1]
  end
  local records, taken = load_records(partition, handles, found)
  local states = redis.call('HMGET', partition.state, unpack(handles))
  local token = math.max((tonumber(partition.last_token or 0) or 0) + 1, now_micros)
  local changes, foreign, n, at = {}, {}, 0, #reply
  for i = 1, taken do
    local handle, record, raw = handles[i], records[i], states[i]
    local due = score_time(entries[2 * i])
    if #handle ~= HANDLE_BYTES or not record or #record < RECORD_BYTES then
      foreign[#foreign + 1] = i
    else
      raw, changes[2 * n + 2] = lease_state(raw, record, token + n, due)
      changes[2 * n + 1] = handle
      reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = handle, due, record, raw
      n, at = n + 1, at + 4
    end
  end
  if #foreign > 0 then
    -- Fails before anything is written if they cannot be moved.
    redis.call('ZCARD', partition.quarantine)
  end
  -- The entries taken are the first ones of the set.
  redis.call('ZREMRANGEBYRANK', partition.due, '0', taken - 1)
  for _, i in ipairs(foreign) do
    quarantine(partition, handles[i], score_time(entries[2 * i]))
  end
  if n > 0 then
    local lease_end = now + length
    add_leases(partition, lease_end, changes)
    redis.call('HSET', partition.meta, 'token', string.format('%.0f', token + n - 1))
    reply[2], reply[3] = lease_end, string.format('%.0f', token)
    jobs_left = jobs_left - n
  end
  local next_entry = entries[2 * taken + 2]
  return next_entry and score_time(next_entry)
end

-- How many entries to read in each of so many partitions.
local function peek_depth(most, partitions)
  return math.min(most, math.ceil(MAX_PEEKED / partitions))
end

local function serve(partition, max, length)
  if partition.paused then
    return { false }
  end
  local reply = { false, 0, 0 }
  local most = math.min(max, jobs_left)
  local next_due = nil
  if only_peek then
    local depth = peek_depth(most, #KEYS / KEYS_PER_PARTITION)
    local entries = most > 0 and due_entries(partition, depth) or {}
    reply = { false }
    for e = 2, #entries, 2 do
      reply[#reply + 1] = score_time(entries[e])
    end
  elseif most > 0 and bytes_left > 0 then
    next_due = lease_due(partition, most, length, reply)
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

-- How many jobs to take from each partition of one queue, so that the oldest of the queue are taken.
local function shares(partitions, max)
  if #partitions == 1 then
    return { max }
  end
  local most = math.min(max, jobs_left)
  local depth = peek_depth(most, #partitions)
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
  for d = 1, math.min(most, #dues) do
    local i = dues[d][2]
    share[i] = share[i] + 1
  end
  return share
end

local n, all = 0, #KEYS / KEYS_PER_PARTITION
while n < all do
  local max, length = tonumber(ARGV[3 + 2 * n]), tonumber(ARGV[4 + 2 * n])
  local partitions = {}
  repeat
    local partition = partition_at(n, KEYS_PER_PARTITION)
    catch_wrong_type(prepare, partition)
    partitions[#partitions + 1] = partition
    n = n + 1
  until ARGV[3 + 2 * n] ~= ''
  local share = shares(partitions, max)
  for i, partition in ipairs(partitions) do
    replies[#replies + 1] = catch_wrong_type(serve, partition, share[i], length) or partition.refusal
  end
end
return replies
