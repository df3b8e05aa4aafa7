-- Ends leases with a verdict each.
--
-- ARGV     1  the channel
--          2  the verdicts of the n leases (at most 100), a letter each
--          3 and 4  the limit of the history: jobs, milliseconds
--          then n handles, n fencing tokens (8 bytes big-endian); then the details of the verdicts
--          that have some. A due time may be '+' and a delay in milliseconds
--          letter  verdict                              details
--          D       done: the job is deleted
--          S       skip: the job is deleted             why
--          R       retry, after a failed attempt        due time, error
--          G       again, with another payload          due time, payload
--          Z       snooze, not counted as an attempt    due time
--          T       snooze, and no job starts before     due time
--          U       released, the handler not started
--          B       released, the handler started
--          X       dead                                 '1' if the attempt failed, else '0'; reason
-- returns  a string with '1' accepted or '0' if the lease was lost, for each lease
-- cost     O(log n) a lease; a call for jobs that are done makes eight commands, nine if any has
--          a key, seven to twelve more with a history, and one or more with limits

local args, sub, byte = ARGV, string.sub, string.byte
local letters = args[2]
local leases = #letters
local HANDLES, TOKENS = 4, 4 + leases
local D, S, R, G, Z, T, U, X = byte('DSRGZTUX', 1, 8)
-- The number of details by verdict.
local DETAILS = { [S] = 1, [R] = 2, [G] = 2, [Z] = 1, [T] = 1, [X] = 2 }
local NO_TOKEN = string.rep('\0', 8)
local handles = {}
for i = 1, leases do
  handles[i] = args[HANDLES + i]
end
read_history_limit(args[3], args[4])
check_ended_keys(partition)
local gate = read_gate(partition)
local states = redis.call('HMGET', partition.state, unpack(handles))
-- Handles whose leases end; handles and keys of deleted jobs; and the answers.
local ended, deleted, keys, answers = {}, {}, {}, {}
-- What is written for kept jobs: handle, state, …; handle, record, …; due time, handle, …; time of
-- death, handle, …; and handle, reason, …
local changed, changed_records, waiting, dead, reasons = {}, {}, {}, {}, {}
local done = 0
-- Until when the queue is closed.
local closed_until
-- Handles of accepted verdicts: a second verdict on the same lease finds the lease lost.
local seen = {}

-- The record of a job with another payload; nil if the job has none that can be read.
local function record_with_payload(handle, payload)
  local record = redis.call('HGET', partition.job, handle)
  if not record or #record < RECORD_BYTES then
    return nil
  end
  local is_readable, length = pcall(prefix_length, string.sub(record, 7))
  return is_readable and sub(record, 1, 6 + length) .. payload or nil
end

-- Makes a job dead. `has_failed` is '1' if the attempt failed, else '0'.
local function mark_dead(handle, state, has_failed, reason)
  state.attempts = state.attempts + tonumber(has_failed)
  reasons[#reasons + 1], reasons[#reasons + 2] = handle, reason
  dead[#dead + 1], dead[#dead + 2] = now_text, handle
  -- Only live jobs have an entry in `key`.
  if state.key ~= '' then
    keys[#keys + 1] = state.key
  end
end

-- Lets a job wait again. `due` is nil for its present due time; `text` is the error of a retry, or
-- the record with the next payload.
local function let_wait(handle, state, verdict, due, text)
  if verdict == R then
    state.losses, state.attempts = 0, state.attempts + 1
    state.note = note_with_error(state.note, text)
  elseif verdict == G then
    state.losses, state.attempts = 0, 0
    state.note = note_with_error(state.note, nil)
    changed_records[#changed_records + 1], changed_records[#changed_records + 2] = handle, text
  elseif verdict == Z or verdict == T then
    state.losses = 0
  elseif verdict == U then
    state.deliveries = state.deliveries - 1
  end
  local score = due and resolve_due(due) or string.format('%.0f', state.due)
  local next_due = tonumber(score)
  closed_until = verdict == T and math.max(next_due, closed_until or next_due) or closed_until
  state.postponed = verdict == G and 0 or state.postponed + next_due - state.due
  state.due = next_due
  waiting[#waiting + 1], waiting[#waiting + 2] = score, handle
end

local detail_at = 2 * leases + 4
for i = 1, leases do
  local handle, verdict, token, stored = handles[i], byte(letters, i), args[TOKENS + i], states[i]
  local details = DETAILS[verdict] or 0
  local first_detail = details > 0 and args[detail_at + 1] or nil
  local second_detail = details > 1 and args[detail_at + 2] or nil
  detail_at = detail_at + details
  local key_length = stored and byte(stored, STATE_BYTES)
  local is_held = key_length and sub(stored, 1, 8) == token and token ~= NO_TOKEN
    and #stored >= STATE_BYTES + key_length and not seen[handle]
  if is_held and verdict == G then
    second_detail = record_with_payload(handle, second_detail)
    is_held = second_detail ~= nil
  end
  answers[i] = is_held and '1' or '0'
  if is_held then
    seen[handle] = true
    ended[#ended + 1] = handle
    if verdict == D or verdict == S then
      done = done + (verdict == D and 1 or 0)
      deleted[#deleted + 1] = handle
      if key_length > 0 then
        keys[#keys + 1] = sub(stored, STATE_BYTES + 1, STATE_BYTES + key_length)
      end
      add_ended(partition, handle, verdict == D and 'D' or 'S', stored, first_detail or '')
    else
      local state = unpack_state(stored)
      state.token = 0
      if verdict == X then
        mark_dead(handle, state, first_detail, second_detail)
      else
        let_wait(handle, state, verdict, first_detail, second_detail)
      end
      changed[#changed + 1], changed[#changed + 2] = handle, pack_state(state)
    end
  end
end

if #changed > 0 then
  -- These fail before anything is written if a key has another type.
  redis.call('ZCARD', partition.due)
  if #dead > 0 then
    redis.call('ZCARD', partition.dead)
    redis.call('HSTRLEN', partition.reason, '')
  end
  if closed_until then
    redis.call('HSTRLEN', partition.flow, '')
  end
end
send('HSET', partition.state, changed)
send('ZADD', partition.due, waiting)
send('HSET', partition.reason, reasons)
send('ZADD', partition.dead, dead)
send('HSET', partition.job, changed_records)
for i = 2, #changed_records, 2 do
  if #changed_records[i] > LARGE_RECORD then
    redis.call('HSET', partition.meta, 'large', 1)
  end
end
send('ZREM', partition.lease, ended)
send('HDEL', partition.job, deleted)
send('HDEL', partition.state, deleted)
flush_ended(partition)
send('HDEL', partition.key, keys)
add_total(partition, 'done', done)
add_total(partition, 'skipped', #deleted - done)
publish_if_first(args[1], partition, waiting)
if closed_until then
  close_until(partition, closed_until)
  gate = read_gate(partition)
end
if gate then
  gate.offer_room(ended)
end
return table.concat(answers)
