-- Ends leases of one queue with a verdict each.
--
-- KEYS     the keys of the queue
-- ARGV     the channel; then for each lease (at most 100): handle, token, verdict, detail
--          verdicts: D done, S skip, R retry (due time), Z snooze (due time), U not started,
--          B started and broken off, X dead ('1' if the attempt failed, else '0'; then the reason)
-- returns  nil: ask again; else a string with '1' accepted or '0' stale for each, then the layout if it
--          is not the one believed in and something was stale
-- cost     O(log n) a lease; those that are done share four commands

local lane = lane_at(0, WIDTH)
if reclaim(lane) then
  return nil
end

local args = ARGV
local leases = (#args - 1) / 4
local handles = {}
-- Whether a job may wait again.
local back = false
for i = 1, leases do
  handles[i] = args[4 * i - 2]
  local verdict = args[4 * i]
  back = back or not (verdict == 'D' or verdict == 'S' or verdict == 'X')
end
local head = back and head_of(lane.due)
local states = redis.call('HMGET', lane.state, unpack(handles))
local ended, over, keys, verdicts = {}, {}, {}, {}
local done, skipped, missed, earliest = 0, 0, false, nil
local seen = {}

local function again(handle, state, due)
  state.token, state.due = 0, due
  redis.call('HSET', lane.state, handle, pack_state(state))
  redis.call('ZADD', lane.due, due, handle)
  if not earliest or due < earliest then
    earliest = due
  end
end

local function bury(handle, state, detail)
  state.token = 0
  state.attempts = state.attempts + tonumber(string.sub(detail, 1, 1))
  redis.call('HSET', lane.state, handle, pack_state(state))
  redis.call('HSET', lane.reason, handle, string.sub(detail, 2))
  redis.call('ZADD', lane.dead, now, handle)
  -- A dead job does not hold its key.
  if state.key ~= '' then
    redis.call('HDEL', lane.key, state.key)
  end
end

local function end_otherwise(handle, state, verdict, detail)
  if verdict == 'X' then
    bury(handle, state, detail)
  elseif verdict == 'R' or verdict == 'Z' then
    state.losses = 0
    if verdict == 'R' then
      state.attempts = state.attempts + 1
    end
    again(handle, state, resolve(detail))
  else
    if verdict == 'U' then
      state.deliveries = state.deliveries - 1
    end
    again(handle, state, state.due)
  end
end

for i = 1, leases do
  local handle, verdict, raw = handles[i], args[4 * i], states[i]
  local token = raw and not seen[handle] and #raw >= STATE_BYTES and struct.unpack('>I8', raw)
  if not token or token == 0 or token ~= tonumber(args[4 * i - 1]) then
    verdicts[i], missed = '0', true
  else
    verdicts[i] = '1'
    seen[handle] = true
    ended[#ended + 1] = handle
    if verdict == 'D' or verdict == 'S' then
      if verdict == 'D' then
        done = done + 1
      else
        skipped = skipped + 1
      end
      over[#over + 1] = handle
      if #raw > STATE_BYTES then
        keys[#keys + 1] = string.sub(raw, STATE_BYTES + 1)
      end
    else
      end_otherwise(handle, unpack_state(raw), verdict, args[4 * i + 1])
    end
  end
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
announce(args[1], head, earliest)
return table.concat(verdicts) .. (missed and other_layout(lane) or '')
