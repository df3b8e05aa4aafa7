-- Ends leases of one partition with a verdict each.
--
-- KEYS     the keys of the partition
-- ARGV     1  the channel
--          2  the verdicts of the n leases (at most 100), a letter each
--          3 and 4  the limit of the history: jobs, milliseconds
--          then n handles, n fencing tokens (8 bytes big-endian); then the details of the verdicts
--          that have one
--          letter  verdict                              detail
--          D       done: the job is deleted
--          S       skip: the job is deleted             why
--          R       retry, after a failed attempt        due time, or '+' and a delay in
--                                                       milliseconds; the error
--          G       again, with another payload          due time, or '+' and a delay in
--                                                       milliseconds; the payload
--          Z       snooze, not counted as an attempt    due time, or '+' and a delay in
--                                                       milliseconds
--          U       released, the handler not started
--          B       released, the handler started
--          X       dead                                 '1' if the attempt failed, else '0'; the
--                                                       reason
-- returns  nil: repeat the call (expired leases); CLOSED: the partition is closed; else a string
--          with '1' accepted or '0' stale (the lease was lost) for each lease
-- cost     O(log n) a lease; a call for jobs that are done makes nine commands, ten if any has a
--          key, and seven to twelve more with a history

local partition = partition_at(0, KEYS_PER_PARTITION)
local stop, early_reply = requeue_expired(partition)
if stop then
  return early_reply
end

local args, sub, byte = ARGV, string.sub, string.byte
local letters = args[2]
local leases = #letters
local D, S, R, G, Z, U, X = byte('DSRGZUX', 1, 7)
-- How many details each verdict has.
local DETAILS = { [S] = 1, [R] = 2, [G] = 2, [Z] = 1, [X] = 2 }
local NO_TOKEN = string.rep('\0', 8)
local handles = {}
for i = 1, leases do
  handles[i] = args[4 + i]
end
read_history_limit(args[3], args[4])
check_ended_keys(partition)
local states = redis.call('HMGET', partition.state, unpack(handles))
local notes = redis.call('HMGET', partition.note, unpack(handles))
-- The handles whose leases end; of these, the ones whose jobs are deleted; the keys of those.
local ended, deleted, keys, answers = {}, {}, {}, {}
-- Of the jobs that wait again: handle, packed state, …; due time, handle, …; handle, note, …; and
-- handle, record, …
local changed, waiting, changed_notes, changed_records = {}, {}, {}, {}
local done, skipped = 0, 0
-- The position of the last detail that was read.
local detail_at = 2 * leases + 4
-- Handles of accepted verdicts: a second verdict on the same lease is stale.
local seen = {}

local function make_dead(handle, state, failed, reason)
  state.token = 0
  state.attempts = state.attempts + tonumber(failed)
  redis.call('HSET', partition.state, handle, pack_state(state))
  redis.call('HSET', partition.reason, handle, reason)
  redis.call('ZADD', partition.dead, now_text, handle)
  -- Only live jobs have an entry in `key`.
  if state.key ~= '' then
    redis.call('HDEL', partition.key, state.key)
  end
end

-- Changes the error of a job that waits again; nil removes it.
local function set_error(i, message)
  local note = notes[i]
  if message or note and #note > NOTE_BYTES then
    local n = #changed_notes
    changed_notes[n + 1], changed_notes[n + 2] =
      handles[i], note_with_error(note and #note >= NOTE_BYTES and note or EMPTY_NOTE, message)
  end
end

-- The record of a job with another payload; nil if the job has none that can be read.
local function record_with_payload(handle, payload)
  local record = redis.call('HGET', partition.job, handle)
  if not record or #record < RECORD_BYTES then
    return nil
  end
  local is_readable, length = pcall(prefix_length, string.sub(record, 7))
  return is_readable and sub(record, 1, 6 + length) .. payload or nil
end

-- Ends the lease of a job that is kept. `detail` and `more` are the details of the verdict.
local function keep_job(i, state, verdict, detail, more)
  local handle = handles[i]
  if verdict == X then
    make_dead(handle, state, detail, more)
    return
  elseif verdict == R then
    state.losses, state.attempts = 0, state.attempts + 1
    set_error(i, more)
  elseif verdict == G then
    state.losses, state.attempts = 0, 0
    set_error(i, nil)
    changed_records[#changed_records + 1], changed_records[#changed_records + 2] = handle, more
  elseif verdict == Z then
    state.losses = 0
  elseif verdict == U then
    state.deliveries = state.deliveries - 1
  end
  local due = detail and resolve_due(detail) or string.format('%.0f', state.due)
  state.token, state.due = 0, tonumber(due)
  changed[#changed + 1], changed[#changed + 2] = handle, pack_state(state)
  waiting[#waiting + 1], waiting[#waiting + 2] = due, handle
end

-- Ends the lease of a job that is deleted.
local function end_job(i, verdict, reason)
  local handle, raw, note = handles[i], states[i], notes[i]
  if verdict == D then
    done = done + 1
  else
    skipped = skipped + 1
  end
  deleted[#deleted + 1] = handle
  if #raw > STATE_BYTES then
    keys[#keys + 1] = sub(raw, STATE_BYTES + 1)
  end
  if not note or #note < NOTE_BYTES or sub(note, 1, 6) == NO_TIME then
    -- An older version granted the lease.
    local record = redis.call('HGET', partition.job, handle)
    note = record and #record >= RECORD_BYTES and fill_note(note or EMPTY_NOTE, record)
  end
  if note then
    add_ended(partition, handle, verdict == D and 'D' or 'S', raw, note, reason or '')
  end
end

for i = 1, leases do
  local handle, verdict, token, raw = handles[i], byte(letters, i), args[4 + leases + i], states[i]
  local detail, more = args[detail_at + 1], args[detail_at + 2]
  local details = DETAILS[verdict] or 0
  detail_at = detail_at + details
  detail, more = details > 0 and detail or nil, details > 1 and more or nil
  local is_held = raw and #raw >= STATE_BYTES and sub(raw, 1, 8) == token and token ~= NO_TOKEN
    and not seen[handle]
  if is_held and verdict == G then
    more = record_with_payload(handle, more)
    is_held = more ~= nil
  end
  answers[i] = is_held and '1' or '0'
  if is_held then
    seen[handle] = true
    ended[#ended + 1] = handle
    if verdict == D or verdict == S then
      end_job(i, verdict, detail)
    else
      keep_job(i, unpack_state(raw), verdict, detail, more)
    end
  end
end

if #waiting > 0 then
  redis.call('HSET', partition.state, unpack(changed))
  redis.call('ZADD', partition.due, unpack(waiting))
end
if #changed_notes > 0 then
  redis.call('HSET', partition.note, unpack(changed_notes))
end
if #changed_records > 0 then
  redis.call('HSET', partition.job, unpack(changed_records))
  for n = 2, #changed_records, 2 do
    if #changed_records[n] > LARGE_RECORD then
      redis.call('HSET', partition.meta, 'large', 1)
    end
  end
end
if #ended > 0 then
  redis.call('ZREM', partition.lease, unpack(ended))
end
if #deleted > 0 then
  redis.call('HDEL', partition.job, unpack(deleted))
  redis.call('HDEL', partition.state, unpack(deleted))
  redis.call('HDEL', partition.note, unpack(deleted))
end
flush_ended(partition)
if #keys > 0 then
  redis.call('HDEL', partition.key, unpack(keys))
end
add_total(partition, 'done', done)
add_total(partition, 'skipped', skipped)
publish_if_first(args[1], partition, partition.due, waiting)
return table.concat(answers)
