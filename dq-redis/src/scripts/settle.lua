-- Ends leases of one queue with a verdict each.
--
-- KEYS     the keys of the queue
-- ARGV     the channel; the verdicts of the leases (at most 100), a letter each; their handles; their
--          tokens, 8 bytes big-endian; then the details of the verdicts that have one
--          verdicts: D done, S skip, R retry (due time), Z snooze (due time), U not started,
--          B started and broken off, X dead ('1' if the attempt failed, else '0'; then the reason)
-- returns  nil: ask again; else a string with '1' accepted or '0' stale for each, then the layout if it
--          is not the one believed in and something was stale
-- cost     O(log n) a lease; those that are done share four commands

local lane = lane_at(0, WIDTH)
if reclaim(lane) then
  return nil
end

local args, sub, byte = ARGV, string.sub, string.byte
local letters = args[2]
local leases = #letters
local D, S, R, Z, U, X = byte('DSRZUX', 1, 6)
local FREE = string.rep('\0', 8)
local handles = {}
for i = 1, leases do
  handles[i] = args[2 + i]
end
local states = redis.call('HMGET', lane.state, unpack(handles))
local ended, over, keys, verdicts = {}, {}, {}, {}
-- The states of jobs that wait again, and where they wait.
local changed, waiting = {}, {}
local done, skipped, missed = 0, 0, false
local detail_at = 2 * leases + 2
local seen = {}

local function again(handle, state, due)
  state.token, state.due = 0, tonumber(due)
  changed[#changed + 1], changed[#changed + 2] = handle, pack_state(state)
  waiting[#waiting + 1], waiting[#waiting + 2] = due, handle
end

local function bury(handle, state, detail)
  state.token = 0
  state.attempts = state.attempts + tonumber(sub(detail, 1, 1))
  redis.call('HSET', lane.state, handle, pack_state(state))
  redis.call('HSET', lane.reason, handle, sub(detail, 2))
  redis.call('ZADD', lane.dead, this_instant, handle)
  -- A dead job does not hold its key.
  if state.key ~= '' then
    redis.call('HDEL', lane.key, state.key)
  end
end

local function end_otherwise(handle, state, verdict, detail)
  if verdict == X then
    bury(handle, state, detail)
  elseif verdict == R or verdict == Z then
    state.losses = 0
    if verdict == R then
      state.attempts = state.attempts + 1
    end
    again(handle, state, resolve(detail))
  else
    if verdict == U then
      state.deliveries = state.deliveries - 1
    end
    again(handle, state, string.format('%.0f', state.due))
  end
end

for i = 1, leases do
  local handle, verdict, token, raw = handles[i], byte(letters, i), args[2 + leases + i], states[i]
  local detail
  if verdict == R or verdict == Z or verdict == X then
    detail_at = detail_at + 1
    detail = args[detail_at]
  end
  if not raw or #raw < STATE_BYTES or sub(raw, 1, 8) ~= token or token == FREE or seen[handle] then
    verdicts[i], missed = '0', true
  else
    verdicts[i] = '1'
    seen[handle] = true
    ended[#ended + 1] = handle
    if verdict == D or verdict == S then
      if verdict == D then
        done = done + 1
      else
        skipped = skipped + 1
      end
      over[#over + 1] = handle
      if #raw > STATE_BYTES then
        keys[#keys + 1] = sub(raw, STATE_BYTES + 1)
      end
    else
      end_otherwise(handle, unpack_state(raw), verdict, detail)
    end
  end
end

if #waiting > 0 then
  redis.call('HSET', lane.state, unpack(changed))
  redis.call('ZADD', lane.due, unpack(waiting))
end
if #ended > 0 then
  redis.call('ZREM', lane.lease, unpack(ended))
end
if #over > 0 then
  redis.call('HDEL', lane.job, unpack(over))
  redis.call('HDEL', lane.state, unpack(over))
end
if #keys > 0 then
  redis.call('HDEL', lane.key, unpack(keys))
end
count(lane, 'done', done)
count(lane, 'skipped', skipped)
announce(args[1], lane.due, waiting)
return table.concat(verdicts) .. (missed and other_layout(lane) or '')
