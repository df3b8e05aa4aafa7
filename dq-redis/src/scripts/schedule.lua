-- Stores jobs, unless a job with the same id or a live one with the same key is kept.
--
-- ARGV     1  the channel
--          2  flags, any of: '=' two of the jobs may have the same handle or key, '+' a due time is
--             a delay, 'L' a record is large
--          3  n, the number of jobs (at most 100)
--          4  the client's estimate of the server's time, which is the accepted time in the records
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

local args, byte = ARGV, string.byte
local flags, jobs = args[2], tonumber(args[3])
-- Where each group of arguments begins: the first one is at the next position.
local HANDLES, RECORDS, DUES = 6, 6 + jobs, 6 + 2 * jobs
local REMEMBER, jobs_to_pin = 6 + 3 * jobs, 0
for at = RECORDS + 1, RECORDS + jobs do
  if is_to_be_pinned(args[at]) then
    jobs_to_pin = jobs_to_pin + 1
  end
end
local KEYS_OF_JOBS = REMEMBER + jobs_to_pin
local jobs_with_key = (#args - KEYS_OF_JOBS) / 2

local function has(letter)
  return string.find(flags, letter, 1, true) ~= nil
end

local has_duplicates = has('=')
if has('+') then
  for at = DUES + 1, DUES + jobs do
    args[at] = resolve_due(args[at])
  end
end
read_history_limit(args[5], args[6])
correct_accepted(args, RECORDS + 1, RECORDS + jobs, tonumber(args[4]))

-- By the number of the job.
local key_of = {}
for at = KEYS_OF_JOBS + 1, KEYS_OF_JOBS + jobs_with_key do
  key_of[tonumber(args[at + jobs_with_key])] = args[at]
end

-- Everything is checked before anything is written, except the type of `due`, which may be first used
-- by ZADD, after HSET job: if that fails, a repeated call finds a record without a due time in
-- resolve_conflict, and stores the job (which `created` then counts twice).
--
-- A job conflicts with a stored job of the same handle or key, or, if there are duplicates, with
-- one of this call. present[i]: the stored record with the handle of job i; records_here: the
-- records of this call, by handle; holder_of: the handle of the live job with a key.
local present = redis.call('HMGET', partition.job, unpack(args, HANDLES + 1, HANDLES + jobs))
local may_conflict, records_here, holder_of = has_duplicates, {}, {}
for i = 1, jobs do
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
local pinned = find_pinned(partition, args, HANDLES + 1, HANDLES + jobs) or {}
local past = find_past(partition, args, HANDLES + 1, HANDLES + jobs) or {}
for i = 1, math.max(#pinned, #past) do
  may_conflict = may_conflict or pinned[i] or past[i]
end
if jobs_with_key > 0 then
  local holders = redis.call(
    'HMGET', partition.key, unpack(args, KEYS_OF_JOBS + 1, KEYS_OF_JOBS + jobs_with_key))
  for k = 1, jobs_with_key do
    if holders[k] then
      may_conflict, holder_of[args[KEYS_OF_JOBS + k]] = true, holders[k]
    end
  end
end

-- Arguments of HSET job (handle, record, …), ZADD due (due time, handle, …) and HSET key (key,
-- handle, …). The first `flushed` of the `n` arguments have been stored.
local records, scores, index = {}, {}, {}
-- Arguments of HSET state (handle, state, …), of which all are new.
local states, remember_at = {}, REMEMBER
if may_conflict then
  -- A job that is replaced ends.
  check_ended_keys(partition)
  check_types_of_job(partition)
end
if jobs_to_pin > 0 then
  -- Fails if the key has another type, before anything is written.
  redis.call('HSTRLEN', partition.state, '')
end
local n, flushed, replaced = 0, 0, 0
-- The handles of this call; only if there are duplicates.
local stored = {}
-- By the handle of each job that this call has replaced: its due time if it is remembered, else false.
local replaced_here = {}
local answers = { now, 0 }

-- Stores the jobs that have been collected.
local function flush()
  if n > flushed then
    send('HSET', partition.job, records, flushed + 1)
    send('ZADD', partition.due, scores, flushed + 1)
    send('HSET', partition.key, index)
    send('HSET', partition.state, states)
    flushed, index, states = n, {}, {}
  end
end

local function answer(i, code, handle, tail, due)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3], answers[n + 4] = i, code, handle .. tail, due
end

-- Whether to store job i, which may have a conflict. Removes the job that it replaces. Adds the
-- answer, unless job i is simply created.
local function resolve_conflict(i)
  local handle, score, key = args[HANDLES + i], args[DUES + i], key_of[i]
  local tail, ended_due = id_tail(args[RECORDS + i]), replaced_here[handle]
  local same_id = ended_due == nil and (present[i] or stored[handle])
  local other = same_id and handle or key and holder_of[key]
  if not same_id and ended_due == nil then
    ended_due = due_of_ended(partition, pinned[i], past[i], handle, tail)
  end
  if ended_due then
    answer(i, 'E', handle, tail, ended_due)
    return false
  end
  if not other then
    return true
  end
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
  if same_id then
    answer(i, 'C', other, id_tail(record), other_due)
    return false
  elseif is_leased then
    if byte(args[RECORDS + i], RECORD_BYTES) >= DETACH then
      detach(partition, other, record)
      return true
    end
    answer(i, 'A', other, id_tail(record), other_due)
    return false
  elseif not replaces(args[RECORDS + i], other_due, tonumber(score)) then
    answer(i, 'K', other, id_tail(record), other_due)
    return false
  end
  redis.call('ZREM', partition.due, other)
  local remembered = #pins + #past_jobs
  end_unleased(partition, other, 'R', other_due, '')
  replaced_here[other] = #pins + #past_jobs > remembered and other_due
  replaced = replaced + 1
  answer(i, 'R', handle, tail, score)
  return true
end

for i = 1, jobs do
  local remember = jobs_to_pin > 0 and is_to_be_pinned(args[RECORDS + i])
  if remember then
    remember_at = remember_at + 1
    remember = args[remember_at]
  end
  if not may_conflict or resolve_conflict(i) then
    local handle = args[HANDLES + i]
    if remember then
      states[#states + 1], states[#states + 2] =
        handle, first_state(tonumber(remember), key_of[i] or '')
    end
    records[n + 1], records[n + 2] = handle, args[RECORDS + i]
    scores[n + 1], scores[n + 2] = args[DUES + i], handle
    n = n + 2
    local key = key_of[i]
    if key then
      index[#index + 1], index[#index + 2] = key, handle
      holder_of[key] = has_duplicates and handle
    end
    if has_duplicates then
      stored[handle], replaced_here[handle] = true, nil
    end
  end
end
-- Totals first: if they cannot be written, no more jobs are stored (none, if there is no conflict).
if add_total(partition, 'created', n / 2) == n / 2 then
  answers[2] = 1
end
add_total(partition, 'replaced', replaced)
if n > 0 and has('L') then
  redis.call('HSET', partition.meta, 'large', 1)
end
flush()
flush_ended(partition)
publish_if_first(args[1], partition, partition.due, scores)
return answers
