-- Stores jobs, unless a job with the same id or a live one with the same key is kept.
--
-- ARGV     1  the channel
--          2  flags, any of: '=' two of the jobs may have the same handle or key, '+' a due time is
--             a delay, 'L' a record is large
--          3  n, the number of jobs (at most 100)
--          4  the client's estimate of the time, with which the records begin
--          5 and 6  the limit of the history: jobs, milliseconds
--          then n handles, n records, n due times (or '+' and a delay in milliseconds); the
--          milliseconds for each id to be pinned; the keys of the jobs that have one; the numbers of
--          these jobs, from 1
-- returns  `ID_COLLISION i`: job number i has the handle of a job with another id, and nothing was
--          stored; else {now; 1 if these are the first jobs by the partition's totals, else 0; then
--          for each job that was not simply created: its number; 'C' it was created before, 'E' it has
--          ended and is remembered, 'K' the other job was kept, 'R' it was replaced, 'A' it is already
--          running; handle and tail, and due time, of the job that is stored or has ended}
-- cost     O(log n) a job; the number of commands does not depend on the number of jobs, except that
--          each conflict takes its own

local args, new = ARGV, read_new_jobs(1, 1)
local HANDLES, RECORDS, DUES = new.handles, new.columns[1], new.dues
local has_duplicates, key_of = new.has_duplicates, new.key_of

-- Everything is checked before anything is written, except the type of `due`, which may be first used
-- by ZADD, after HSET job: if that fails, a repeated call finds a record without a due time in
-- store_beside, and stores the job (which `created` then counts twice).
--
-- A job conflicts with a stored job of the same handle or key, or, if there are duplicates, with
-- one of this call. present[i]: the stored record with the handle of job i; records_here: the
-- records of this call, by handle; holder_of: the handle of the live job with a key.
local present = redis.call('HMGET', partition.job, unpack(args, HANDLES + 1, HANDLES + new.count))
local may_conflict, records_here, holder_of = has_duplicates, {}, {}
for i = 1, new.count do
  if present[i] or has_duplicates then
    may_conflict = true
    local handle, record = args[HANDLES + i], args[RECORDS + i]
    local other = present[i] or records_here[handle]
    if other and id_tail(record) ~= id_tail(other) then
      return redis.status_reply('ID_COLLISION ' .. i)
    end
    records_here[handle] = record
  end
end
local pinned = find_pinned(partition, args, HANDLES + 1, HANDLES + new.count) or {}
local past = find_past(partition, args, HANDLES + 1, HANDLES + new.count) or {}
for i = 1, math.max(#pinned, #past) do
  may_conflict = may_conflict or pinned[i] or past[i]
end
if new.last_key > new.keys then
  local holders = redis.call('HMGET', partition.key, unpack(args, new.keys + 1, new.last_key))
  for i, holder in ipairs(holders) do
    if holder then
      may_conflict, holder_of[args[new.keys + i]] = true, holder
    end
  end
end
if may_conflict then
  -- A job that is replaced ends.
  check_ended_keys(partition)
  check_types_of_job(partition)
end
if new.pins_ids then
  -- This fails if the key has another type, before anything is written.
  redis.call('HSTRLEN', partition.state, '')
end

-- Arguments of HSET job (handle, record, …), ZADD due (due time, handle, …), HSET key (key, handle,
-- …) and HSET state (handle, state, …). The first `flushed` of the `length` arguments of the first
-- two have been stored, and all of the others that are not here any more.
local records, scores, index, states = {}, {}, {}, {}
local length, flushed, replaced = 0, 0, 0
-- The handles of this call, only if there are duplicates.
local stored = {}
-- By the handle of each job that this call has replaced: its due time if it is remembered, else false.
local replaced_here = {}
local answers = { now, 0 }

-- Stores the jobs that have been collected.
local function flush()
  if length > flushed then
    send('HSET', partition.job, records, flushed + 1)
    send('ZADD', partition.due, scores, flushed + 1)
    send('HSET', partition.key, index)
    send('HSET', partition.state, states)
    flushed, index, states = length, {}, {}
  end
end

-- Whether to store job i, whose key (or id) the live job `other` has. Removes a job that job i
-- replaces. Adds the answer, unless job i is simply created.
local function store_beside(i, other, has_same_id)
  flush()
  local record = redis.call('HGET', partition.job, other)
  local other_due, is_leased
  if record then
    other_due, is_leased = due_and_leased(partition, other)
  end
  if not other_due then
    -- Another program removed parts of it, or an earlier call failed at ZADD. What is left of its state
    -- is not that of the job to be stored.
    redis.call('HDEL', partition.state, other)
    return true
  end
  local code = 'C'
  if not has_same_id then
    code = key_conflict(args[RECORDS + i], tonumber(args[DUES + i]), other_due, is_leased)
  end
  if code == 'detach' then
    detach(partition, other, record)
    return true
  elseif code ~= 'R' then
    add_answer(answers, i, code, other .. id_tail(record), other_due)
    return false
  end
  redis.call('ZREM', partition.due, other)
  local remembered = #pins + #past_jobs
  end_unleased(partition, other, 'R', other_due, '')
  replaced_here[other] = #pins + #past_jobs > remembered and other_due
  replaced = replaced + 1
  add_answer(answers, i, 'R', args[HANDLES + i] .. id_tail(args[RECORDS + i]), args[DUES + i])
  return true
end

-- Whether to store job i, which may have a conflict.
local function resolve_conflict(i)
  local handle, tail = args[HANDLES + i], id_tail(args[RECORDS + i])
  -- Nil if this call has not replaced the job with this handle.
  local ended_due = replaced_here[handle]
  local is_present = ended_due == nil and (present[i] or stored[handle])
  if ended_due == nil and not is_present then
    ended_due = due_of_ended(partition, pinned[i], past[i], handle, tail)
  end
  if ended_due then
    add_answer(answers, i, 'E', handle .. tail, ended_due)
    return false
  elseif is_present then
    return store_beside(i, handle, true)
  end
  local holder = key_of[i] and holder_of[key_of[i]]
  return not holder or store_beside(i, holder, false)
end

for i = 1, new.count do
  if not may_conflict or resolve_conflict(i) then
    local handle, key, remember = args[HANDLES + i], key_of[i], new.remember_of[i]
    if remember then
      states[#states + 1], states[#states + 2] = handle, first_state(remember, key or '')
    end
    records[length + 1], records[length + 2] = handle, args[RECORDS + i]
    scores[length + 1], scores[length + 2] = args[DUES + i], handle
    length = length + 2
    if key then
      index[#index + 1], index[#index + 2] = key, handle
      holder_of[key] = has_duplicates and handle
    end
    if has_duplicates then
      stored[handle], replaced_here[handle] = true, nil
    end
  end
end
-- Totals come first: if they cannot be written, no more jobs are stored (none, if there is no
-- conflict).
if add_total(partition, 'created', length / 2) == length / 2 then
  answers[2] = 1
end
add_total(partition, 'replaced', replaced)
if length > 0 and new.has_large then
  redis.call('HSET', partition.meta, 'large', 1)
end
flush()
flush_ended(partition)
publish_if_first(args[1], partition, scores)
return answers
