-- Ends leases of one partition with a verdict each.
--
-- KEYS     the keys of the partition
-- ARGV     1  the channel
--          2  the verdicts of the n leases (at most 100), a letter each
--          then n handles, n fencing tokens (8 bytes big-endian); then the details of the verdicts
--          that have one
--          letter  verdict                              detail
--          D       done: the job is deleted
--          S       skip: the job is deleted
--          R       retry, after a failed attempt        due time, or '+' and a delay in
--                                                       milliseconds
--          Z       snooze, not counted as an attempt    due time, or '+' and a delay in
--                                                       milliseconds
--          U       released, the handler not started
--          B       released, the handler started
--          X       dead                                 '1' if the attempt failed, else '0'; the
--                                                       reason
-- returns  nil: repeat the call (expired leases); CLOSED: the partition is closed; else a string
--          with '1' accepted or '0' stale (the lease was lost) for each lease
-- cost     O(log n) a lease; those that are done share four commands

local partition = partition_at(0, KEYS_PER_PARTITION)
local stop, early_reply = requeue_expired(partition)
if stop then
  return early_reply
end

local args, sub, byte = ARGV, string.sub, string.byte
local letters = args[2]
local leases = #letters
local D, S, R, Z, U, X = byte('DSRZUX', 1, 6)
local NO_TOKEN = string.rep('\0', 8)
local handles = {}
for i = 1, leases do
  handles[i] = args[2 + i]
end
local states = redis.call('HMGET', partition.state, unpack(handles))
-- The handles whose leases end; of these, the ones whose jobs are deleted; the keys of those.
local ended, deleted, keys, answers = {}, {}, {}, {}
-- Of the jobs that wait again: handle, packed state, …; and due time, handle, …
local changed, waiting = {}, {}
local done, skipped = 0, 0
-- The position of the last detail that was read.
local detail_at = 2 * leases + 2
-- Handles of accepted verdicts: a second verdict on the same lease is stale.
local seen = {}

local function make_due(handle, state, due)
  state.token, state.due = 0, tonumber(due)
  changed[#changed + 1], changed[#changed + 2] = handle, pack_state(state)
  waiting[#waiting + 1], waiting[#waiting + 2] = due, handle
end

local function make_dead(handle, state, detail)
  state.token = 0
  state.attempts = state.attempts + tonumber(sub(detail, 1, 1))
  redis.call('HSET', partition.state, handle, pack_state(state))
  redis.call('HSET', partition.reason, handle, sub(detail, 2))
  redis.call('ZADD', partition.dead, now_text, handle)
  -- Only live jobs have an entry in `key`.
  if state.key ~= '' then
    redis.call('HDEL', partition.key, state.key)
  end
end

local function keep_job(handle, state, verdict, detail)
  if verdict == X then
    make_dead(handle, state, detail)
  elseif verdict == R or verdict == Z then
    state.losses = 0
    if verdict == R then
      state.attempts = state.attempts + 1
    end
    make_due(handle, state, resolve_due(detail))
  else
    if verdict == U then
      state.deliveries = state.deliveries - 1
    end
    make_due(handle, state, string.format('%.0f', state.due))
  end
end

for i = 1, leases do
  local handle, verdict, token, raw = handles[i], byte(letters, i), args[2 + leases + i], states[i]
  local detail
  if verdict == R or verdict == Z or verdict == X then
    detail_at = detail_at + 1
    detail = args[detail_at]
  end
  if not raw or #raw < STATE_BYTES or sub(raw, 1, 8) ~= token or token == NO_TOKEN or seen[handle] then
    answers[i] = '0'
  else
    answers[i] = '1'
    seen[handle] = true
    ended[#ended + 1] = handle
    if verdict == D or verdict == S then
      if verdict == D then
        done = done + 1
      else
        skipped = skipped + 1
      end
      deleted[#deleted + 1] = handle
      if #raw > STATE_BYTES then
        keys[#keys + 1] = sub(raw, STATE_BYTES + 1)
      end
    else
      keep_job(handle, unpack_state(raw), verdict, detail)
    end
  end
end

if #waiting > 0 then
  redis.call('HSET', partition.state, unpack(changed))
  redis.call('ZADD', partition.due, unpack(waiting))
end
if #ended > 0 then
  redis.call('ZREM', partition.lease, unpack(ended))
end
if #deleted > 0 then
  redis.call('HDEL', partition.job, unpack(deleted))
  redis.call('HDEL', partition.state, unpack(deleted))
end
if #keys > 0 then
  redis.call('HDEL', partition.key, unpack(keys))
end
add_total(partition, 'done', done)
add_total(partition, 'skipped', skipped)
publish_if_first(args[1], partition.due, waiting)
return table.concat(answers)
