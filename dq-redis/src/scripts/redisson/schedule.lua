-- Stores jobs as members of Redisson's sorted set. (Words: see keys.lua.)
--
-- ARGV     as schedule.lua, but in place of the records: member ids, record prefixes,
--          payloads
-- returns  OTHER_FORMAT: the queue holds members of the other format, and nothing was stored; else as
--          schedule.lua. The second item is 0, since no total tells whether these are the first jobs
-- cost     O(log n) a job, and two commands for each key; each conflict takes commands of its own

if has_other_format(partition) then
  return redis.status_reply('OTHER_FORMAT')
end

local args, new = ARGV, read_new_jobs(3, 2)
local HANDLES, DUES = new.handles, new.dues
local MEMBER_IDS, RECORD_PREFIXES, PAYLOADS = unpack(new.columns)
local has_duplicates, key_of = new.has_duplicates, new.key_of
local members = {}
for i = 1, new.count do
  members[i] = pack_member(args[MEMBER_IDS + i], args[PAYLOADS + i])
end

redis.call('ZCARD', partition.due)
redis.call('HSTRLEN', partition.meta, '')
check_types_of_job(partition)
check_ended_keys(partition)

local function values_of(hash, before)
  if redis.call('HLEN', hash) == 0 then
    return {}
  end
  return redis.call('HMGET', hash, unpack(args, before + 1, before + new.count))
end

-- What is stored with the handle or the member id of each job, false or nil if there is nothing:
-- records of native jobs, index entries, pins, past jobs and due times of members.
local native, indexed = values_of(partition.job, HANDLES), values_of(partition.index, MEMBER_IDS)
local pinned = find_pinned(partition, args, HANDLES + 1, HANDLES + new.count) or {}
local past = find_past(partition, args, HANDLES + 1, HANDLES + new.count) or {}
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
for i = 1, new.count do
  if has_duplicates or native[i] or indexed[i] then
    local id, handle, member_id = id_of(i), args[HANDLES + i], args[MEMBER_IDS + i]
    local entry = indexed[i] and waiting_entry(partition, member_id)
    if (ids_here[handle] or id) ~= id or (ids_here[member_id] or id) ~= id
      or native[i] and handle .. id_tail(native[i]) ~= id
      or entry and entry.handle .. entry.tail ~= id
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

-- Stores the jobs that have been collected.
local function flush()
  send('ZADD', partition.timeout, scores, flushed + 1)
  send('RPUSH', partition.order, order)
  send('HSET', partition.index, index)
  send('HSET', partition.state, states)
  flushed, order, index, states = #scores, {}, {}, {}
end

-- Stores job `i`, as of the next flush, but its key at once.
local function store(i, due)
  local handle, prefix, key = args[HANDLES + i], args[RECORD_PREFIXES + i], key_of[i]
  scores[#scores + 1], scores[#scores + 2] = due, members[i]
  if VISIBILITY ~= 'hidden' then
    order[#order + 1] = members[i]
  end
  index[#index + 1], index[#index + 2] = args[MEMBER_IDS + i], pack_entry(due, handle, prefix)
  if new.remember_of[i] then
    states[#states + 1], states[#states + 2] = handle, first_state(new.remember_of[i], key or '')
  end
  if key then
    redis.call('HSET', partition.key, key, id_of(i))
    stored_keys[key] = true
  end
  if has_duplicates then
    changed_here[handle] = STORED
  end
end

-- Due time, and whether it is leased, of a native job; nil as of due_and_leased, or if this call has
-- removed the job.
local function find_native(handle)
  if redis.call('HSTRLEN', partition.job, handle) > 0 then
    return due_and_leased(partition, handle)
  end
end

-- Stores a job with a key, or resolves its conflict with the live job that has the key.
local function store_keyed(i, due)
  local other = find_job(partition, 'k' .. key_of[i])
  if not other then
    store(i, due)
    return
  end
  local other_due, is_leased = other.due, false
  if not other.member then
    other_due, is_leased = find_native(other.handle)
  end
  if not other_due then
    -- Another program removed part of that job.
    delete_job(partition, other.handle, key_of[i])
    store(i, due)
    return
  end
  local code = key_conflict(args[RECORD_PREFIXES + i], tonumber(due), other_due, is_leased)
  if code == 'detach' then
    detach(partition, other.handle, redis.call('HGET', partition.job, other.handle))
    store(i, due)
  elseif code == 'R' then
    local remembered = #pins + #past_jobs
    end_waiting(partition, other, other_due, 'R')
    local is_remembered = #pins + #past_jobs > remembered
    changed_here[other.handle] = is_remembered and other_due or FORGOTTEN
    store(i, due)
    add_answer(answers, i, 'R', id_of(i), due)
  else
    add_answer(answers, i, code, other.handle .. other.tail, other_due)
  end
end

-- Stores job `i`, which may have a conflict.
local function store_unless_present(i)
  local handle, member_id, due = args[HANDLES + i], args[MEMBER_IDS + i], args[DUES + i]
  local change = changed_here[handle]
  local entry, native_due
  if change == STORED or not change and indexed[i] then
    flush()
    entry = waiting_entry(partition, member_id)
  end
  if not change and native[i] then
    native_due = find_native(handle)
    if not native_due then
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
  if native_due then
    add_answer(answers, i, 'C', id_of(i), native_due)
  elseif entry then
    add_answer(answers, i, 'C', id_of(i), entry.due)
  elseif not change and member_scores[i] then
    add_answer(answers, i, 'C', id_of(i), score_time(member_scores[i]))
  elseif ended_due then
    add_answer(answers, i, 'E', id_of(i), ended_due)
  elseif key_of[i] then
    if stored_keys[key_of[i]] then
      flush()
    end
    store_keyed(i, due)
  else
    store(i, due)
  end
end

local may_conflict = has_duplicates or new.last_key > new.keys
for i = 1, new.count do
  may_conflict = may_conflict or native[i] or indexed[i] or member_scores[i] or pinned[i] or past[i]
end
for i = 1, new.count do
  if may_conflict then
    store_unless_present(i)
  else
    store(i, args[DUES + i])
  end
end
flush()
flush_ended(partition)
sweep_index(partition)
publish_if_first(args[1], partition, scores)
return answers
