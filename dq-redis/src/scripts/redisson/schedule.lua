-- Stores jobs as members of Redisson's sorted set. (Words: see java.lua.)
--
-- ARGV     as schedule.lua, but in place of the records: member ids, record prefixes, payloads
-- returns  OTHER_FORMAT: the queue holds members of the other format, and nothing was stored; else as
--          schedule.lua. The second item is 0, since no total tells whether these are the first jobs
-- cost     O(log n) a job, and two commands for each key; each conflict takes commands of its own

if has_other_format(partition) then
  return redis.status_reply('OTHER_FORMAT')
end

local args = ARGV
local flags, jobs = args[2], tonumber(args[3])
-- Argument `i` of each kind is args[HANDLES + i], and so on.
local HANDLES, MEMBER_IDS, RECORD_PREFIXES = 6, 6 + jobs, 6 + 2 * jobs
local PAYLOADS, DUES, REMEMBER = 6 + 3 * jobs, 6 + 4 * jobs, 6 + 5 * jobs
local remember_of, jobs_to_pin = {}, 0
for i = 1, jobs do
  if is_to_be_pinned(args[RECORD_PREFIXES + i]) then
    jobs_to_pin = jobs_to_pin + 1
    remember_of[i] = tonumber(args[REMEMBER + jobs_to_pin])
  end
end
local KEYS_OF_JOBS = REMEMBER + jobs_to_pin
read_history_limit(args[5], args[6])
local has_duplicates = string.find(flags, '=', 1, true) ~= nil
if string.find(flags, '+', 1, true) then
  for at = DUES + 1, DUES + jobs do
    args[at] = resolve_due(args[at])
  end
end
correct_accepted(args, RECORD_PREFIXES + 1, RECORD_PREFIXES + jobs, tonumber(args[4]))
local members, key_of = {}, {}
for i = 1, jobs do
  members[i] = pack_member(args[MEMBER_IDS + i], args[PAYLOADS + i])
end
local jobs_with_key = (#args - KEYS_OF_JOBS) / 2
for at = KEYS_OF_JOBS + 1, KEYS_OF_JOBS + jobs_with_key do
  key_of[tonumber(args[at + jobs_with_key])] = args[at]
end

redis.call('ZCARD', partition.due)
redis.call('HSTRLEN', partition.meta, '')
check_types_of_job(partition)
check_ended_keys(partition)

local function values_of(hash, before)
  if redis.call('HLEN', hash) == 0 then
    return {}
  end
  return redis.call('HMGET', hash, unpack(args, before + 1, before + jobs))
end

local native, indexed = values_of(partition.job, HANDLES), values_of(partition.index, MEMBER_IDS)
local pinned = find_pinned(partition, args, HANDLES + 1, HANDLES + jobs) or {}
local past = find_past(partition, args, HANDLES + 1, HANDLES + jobs) or {}
local member_scores = redis.call('ZMSCORE', partition.timeout, unpack(members))

local function id_of(i)
  return args[HANDLES + i] .. id_tail(args[RECORD_PREFIXES + i])
end

-- Two ids may have one handle or, in the legacy format, one member id. The second is refused if the
-- first is of this call, of a native job, or of a member with the same member id. A member that only
-- has the same handle is not found, since the index is by member id: `assign_ids` in claim.lua then
-- gives another id to the one that is claimed last.
--
-- The ids of this call, by handle and by member id, which have different lengths.
local ids_here = {}
for i = 1, jobs do
  if has_duplicates or native[i] or indexed[i] then
    local id, handle, member_id = id_of(i), args[HANDLES + i], args[MEMBER_IDS + i]
    local entry = indexed[i] and waiting_entry(partition, member_id)
    if (ids_here[handle] or id) ~= id or (ids_here[member_id] or id) ~= id
      or native[i] and handle .. id_tail(native[i]) ~= id
      or entry and entry.handle .. id_tail(entry.record_prefix) ~= id
    then
      return redis.status_reply('ID_COLLISION ' .. i)
    end
    ids_here[handle], ids_here[member_id] = id, id
  end
end

-- Arguments of the commands that store jobs: of ZADD, of which the first `flushed` have been sent,
-- of RPUSH and of HSET.
local scores, order, index, states = {}, {}, {}, {}
local flushed = 0
local stored_keys = {}
-- By handle, the last change of a job by this call: STORED (only if there are duplicates), or for a
-- job that was replaced its due time if it is remembered, else FORGOTTEN. What was found when the call
-- began is not true any more for a job that has changed.
local STORED, FORGOTTEN = 'stored', 'forgotten'
local changed_here = {}
local answers = { now, 0 }

local function flush()
  send('ZADD', partition.timeout, scores, flushed + 1)
  send('RPUSH', partition.order, order)
  send('HSET', partition.index, index)
  send('HSET', partition.state, states)
  flushed, order, index, states = #scores, {}, {}, {}
end

-- Stores job `i`, as of the next flush, but its key at once.
local function store(i, due)
  local n = #scores
  scores[n + 1], scores[n + 2] = due, members[i]
  if VISIBILITY ~= 'hidden' then
    order[#order + 1] = members[i]
  end
  n = #index
  index[n + 1], index[n + 2] =
    args[MEMBER_IDS + i], pack_entry(due, args[HANDLES + i], args[RECORD_PREFIXES + i])
  if remember_of[i] then
    states[#states + 1], states[#states + 2] =
      args[HANDLES + i], first_state(remember_of[i], key_of[i] or '')
  end
  if key_of[i] then
    redis.call('HSET', partition.key, key_of[i], id_of(i))
    stored_keys[key_of[i]] = true
  end
  if has_duplicates then
    changed_here[args[HANDLES + i]] = STORED
  end
end

local function answer(i, code, id, due)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3], answers[n + 4] = i, code, id, due
end

-- Handle and tail, due time, and whether it is leased, of a native job; no due time as of
-- due_and_leased, or if this call has removed the job.
local function find_native(handle)
  local record = redis.call('HGET', partition.job, handle)
  if record then
    return handle .. id_tail(record), due_and_leased(partition, handle)
  end
end

-- Stores a job with a key, or resolves its conflict with the live job that has the key.
local function store_keyed(i, due)
  local handle, entry = find_job(partition, 'k' .. key_of[i])
  if not handle and not entry then
    store(i, due)
    return
  end
  local other, other_due, is_leased
  if handle then
    other, other_due, is_leased = find_native(handle)
  else
    other, other_due, is_leased = entry.handle .. id_tail(entry.record_prefix), entry.due, false
  end
  if not other_due then
    -- Another program removed part of that job.
    delete_job(partition, handle, key_of[i])
    store(i, due)
  elseif is_leased and string.byte(args[RECORD_PREFIXES + i], RECORD_BYTES) >= DETACH then
    detach(partition, handle, redis.call('HGET', partition.job, handle))
    store(i, due)
  elseif is_leased then
    answer(i, 'A', other, other_due)
  elseif not replaces(args[RECORD_PREFIXES + i], other_due, tonumber(due)) then
    answer(i, 'K', other, other_due)
  else
    local remembered = #pins + #past_jobs
    if handle then
      redis.call('ZREM', partition.due, handle)
      end_unleased(partition, handle, 'R', other_due, '')
    else
      end_member(partition, entry, 'R')
    end
    changed_here[handle or entry.handle] = #pins + #past_jobs > remembered and other_due or FORGOTTEN
    store(i, due)
    answer(i, 'R', id_of(i), due)
  end
end

local function store_unless_present(i)
  local handle, member_id, due = args[HANDLES + i], args[MEMBER_IDS + i], args[DUES + i]
  local change = changed_here[handle]
  local entry, other, other_due
  if change == STORED or not change and indexed[i] then
    flush()
    entry = waiting_entry(partition, member_id)
  end
  if not change and native[i] then
    other, other_due = find_native(handle)
    if not other_due then
      delete_job(partition, handle, '')
    end
  end
  local ended_due
  if not change then
    local tail = id_tail(args[RECORD_PREFIXES + i])
    ended_due = due_of_ended(partition, pinned[i], past[i], handle, tail)
  elseif change ~= STORED and change ~= FORGOTTEN then
    ended_due = change
  end
  if other_due then
    answer(i, 'C', other, other_due)
  elseif entry then
    answer(i, 'C', id_of(i), entry.due)
  elseif not change and member_scores[i] then
    answer(i, 'C', id_of(i), score_time(member_scores[i]))
  elseif ended_due then
    answer(i, 'E', id_of(i), ended_due)
  elseif key_of[i] then
    if stored_keys[key_of[i]] then
      flush()
    end
    store_keyed(i, due)
  else
    store(i, due)
  end
end

local may_conflict = has_duplicates or jobs_with_key > 0
for i = 1, jobs do
  may_conflict = may_conflict or native[i] or indexed[i] or member_scores[i] or pinned[i] or past[i]
end
for i = 1, jobs do
  if may_conflict then
    store_unless_present(i)
  else
    store(i, args[DUES + i])
  end
end
flush()
flush_ended(partition)
sweep_index(partition)
publish_if_first(args[1], partition, partition.timeout, scores)
return answers
