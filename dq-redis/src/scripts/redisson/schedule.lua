-- Stores jobs of one queue as members of Java's sorted set.
--
-- KEYS, ARGV, returns, errors: as scripts/schedule.lua, but between handles and due times: the member
--          ids, the records up to the payloads, the payloads; and '=' also if two jobs have the same member
--          id. Also returns OTHER_FORMAT: the queue holds members of the other format, and nothing was
--          stored
-- cost     O(log n) a job; jobs without a key share five commands, six unless visibility is `hidden`

local partition = redisson_partition_at(0)
if requeue_expired(partition) then
  return nil
end
if has_other_format(partition) then
  return redis.status_reply('OTHER_FORMAT')
end

local args = ARGV
local flags, jobs = args[2], tonumber(args[3])
local HANDLES, MEMBER_IDS, HEADERS = 4, 4 + jobs, 4 + 2 * jobs
local PAYLOADS, DUES, KEYED = 4 + 3 * jobs, 4 + 4 * jobs, 4 + 5 * jobs
local has_duplicates = string.find(flags, '=', 1, true) ~= nil
if string.find(flags, '+', 1, true) then
  for at = DUES + 1, DUES + jobs do
    args[at] = resolve_due(args[at])
  end
end
correct_accepted(args, HEADERS + 1, HEADERS + jobs, tonumber(args[4]))
local members, keys = {}, {}
for i = 1, jobs do
  members[i] = pack_member(args[MEMBER_IDS + i], args[PAYLOADS + i])
end
local jobs_with_key = (#args - KEYED) / 2
for at = KEYED + 1, KEYED + jobs_with_key do
  keys[tonumber(args[at + jobs_with_key])] = args[at]
end

-- Fails on a key of another type before anything is written.
redis.call('ZCARD', partition.due)
for _, hash in ipairs({ partition.state, partition.key, partition.meta }) do
  redis.call('HSTRLEN', hash, '')
end
order_length(partition)

-- The values of the jobs' fields, which begin after `fields` in the arguments. An empty hash is not
-- searched.
local function values_of(hash, fields)
  if redis.call('HLEN', hash) == 0 then
    return {}
  end
  return redis.call('HMGET', hash, unpack(args, fields + 1, fields + jobs))
end

local native, indexed = values_of(partition.job, HANDLES), values_of(partition.index, MEMBER_IDS)
local waiting = redis.call('ZMSCORE', partition.timeout, unpack(members))

-- Handle and tail of a job of this call.
local function id_of(i)
  return args[HANDLES + i] .. id_tail(args[HEADERS + i])
end

-- Two ids may have one handle or, in the legacy format, one member id: the second is refused.
local first_ids = {}
for i = 1, jobs do
  if has_duplicates or native[i] or indexed[i] then
    local member_id = args[MEMBER_IDS + i]
    local other = first_ids[member_id]
    if native[i] then
      other = other or args[HANDLES + i] .. id_tail(native[i])
    end
    if indexed[i] and not other then
      local entry = waiting_entry(partition, member_id)
      other = entry and entry.handle .. id_tail(entry.header)
    end
    if other and other ~= id_of(i) then
      return redis.status_reply('ID_COLLISION ' .. i)
    end
    first_ids[member_id] = id_of(i)
  end
end

local scores, order, index = {}, {}, {}
local flushed = 0
local stored, new_keys = {}, {}
local answers = { now }

local function flush()
  if #scores > flushed then
    redis.call('ZADD', partition.timeout, unpack(scores, flushed + 1))
    flushed = #scores
  end
  if #order > 0 then
    redis.call('RPUSH', partition.order, unpack(order))
  end
  if #index > 0 then
    redis.call('HSET', partition.index, unpack(index))
  end
  order, index = {}, {}
end

local function store(i, due)
  local n = #scores
  scores[n + 1], scores[n + 2] = due, members[i]
  if VISIBILITY ~= 'hidden' then
    order[#order + 1] = members[i]
  end
  n = #index
  index[n + 1], index[n + 2] =
    args[MEMBER_IDS + i], pack_entry(due, args[HANDLES + i], args[HEADERS + i])
  if keys[i] then
    redis.call('HSET', partition.key, keys[i], id_of(i))
    new_keys[keys[i]] = true
  end
  if has_duplicates then
    stored[args[MEMBER_IDS + i]] = true
  end
end

local function answer(i, code, id, due)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3], answers[n + 4] = i, code, id, due
end

-- A native job: handle and tail, when it is due, and whether it runs. Nil if it neither waits nor runs.
local function find_native(handle)
  local id = handle .. id_tail(redis.call('HGET', partition.job, handle))
  local due = redis.call('ZSCORE', partition.due, handle)
  if due then
    return id, score_time(due), false
  end
  local state = unpack_state(redis.call('HGET', partition.state, handle))
  if state then
    return id, state.due, state.token ~= 0
  end
end

-- Whether the conflict policy of a job replaces another one, given the due times of both.
local function replaces(i, other_due, due)
  local policy = math.floor(string.byte(args[HEADERS + i], RECORD_BYTES) / 16)
  return policy == 1 or (policy == 2 and due < other_due) or (policy == 3 and due > other_due)
end

-- Stores a job with a key, or resolves its conflict with the live job that has the key.
local function store_keyed(i, due)
  local handle, entry = find_job(partition, 'k' .. keys[i])
  if not handle and not entry then
    store(i, due)
    return
  end
  local other, other_due, runs
  if handle then
    other, other_due, runs = find_native(handle)
  else
    other, other_due, runs = entry.handle .. id_tail(entry.header), entry.due, false
  end
  if not other_due then
    -- Another program removed part of that job.
    delete_job(partition, handle, keys[i])
    store(i, due)
  elseif runs then
    answer(i, 'A', other, other_due)
  elseif not replaces(i, other_due, tonumber(due)) then
    answer(i, 'K', other, other_due)
  else
    if handle then
      redis.call('ZREM', partition.due, handle)
      delete_job(partition, handle, keys[i])
    else
      redis.call('ZREM', partition.timeout, entry.member)
      remove_from_order(partition, { entry.member }, { entry.member_id })
      remove_entry(partition, entry)
    end
    store(i, due)
    answer(i, 'R', id_of(i), due)
  end
end

-- Stores a job, unless another one has its handle, member id or key.
local function store_unless_present(i)
  local due, member_id = args[DUES + i], args[MEMBER_IDS + i]
  local entry = nil
  if indexed[i] or stored[member_id] then
    flush()
    entry = waiting_entry(partition, member_id)
  end
  local other, other_due, runs
  if native[i] then
    other, other_due, runs = find_native(args[HANDLES + i])
    if not other_due then
      delete_job(partition, args[HANDLES + i], '')
    end
  end
  if other_due then
    answer(i, runs and 'A' or 'K', other, other_due)
  elseif entry then
    answer(i, 'K', id_of(i), entry.due)
  elseif waiting[i] then
    answer(i, 'K', id_of(i), score_time(waiting[i]))
  elseif keys[i] then
    if new_keys[keys[i]] then
      flush()
    end
    store_keyed(i, due)
  else
    store(i, due)
  end
end

local may_conflict = has_duplicates or jobs_with_key > 0
for i = 1, jobs do
  may_conflict = may_conflict or native[i] or indexed[i] or waiting[i]
end
for i = 1, jobs do
  if may_conflict then
    store_unless_present(i)
  else
    store(i, args[DUES + i])
  end
end
flush()
sweep_index(partition)
publish_if_first(args[1], partition.timeout, scores)
return answers
