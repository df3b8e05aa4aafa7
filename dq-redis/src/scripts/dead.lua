-- Replays or removes dead jobs of one queue.
--
-- KEYS     the keys of the queue
-- ARGV     the channel; 'replay' or 'remove'; due time; most jobs; then either 'a' for all, with
--          time and handle of the last one looked at before if it is not the first call, or 'n' and
--          handle and tail of each
-- returns  nil: ask again; LAYOUT and a layout: not the one believed in, and nothing was done;
--          else {how many changed, then, if there may be more, time and handle to go
--          on from}
-- cost     O(log n) a job

local lane = lane_at(0, WIDTH)
if reclaim(lane) then
  return nil
end
local other = other_layout(lane)
if other then
  return other_layout_reply(other)
end

local replay, due, limit = ARGV[2] == 'replay', resolve(ARGV[3]), tonumber(ARGV[4])
local changed, restored = 0, {}

local function change(handle)
  local record = redis.call('HGET', lane.job, handle)
  local key = record_key(record)
  if not record then
    stray(lane, handle, now)
  elseif not replay then
    erase(lane, handle, '')
    count(lane, 'removed', 1)
  else
    if key ~= '' then
      -- A job whose key is live again stays dead.
      if key_is_live(lane, key) then
        return
      end
      redis.call('HSET', lane.key, key, handle)
    end
    local state = unpack_state(redis.call('HGET', lane.state, handle)) or fresh_state(record, 0)
    state.due, state.attempts, state.losses = tonumber(due), 0, 0
    redis.call('HSET', lane.state, handle, pack_state(state))
    redis.call('ZADD', lane.due, due, handle)
    restored[#restored + 1], restored[#restored + 2] = due, handle
  end
  redis.call('ZREM', lane.dead, handle)
  redis.call('HDEL', lane.reason, handle)
  changed = changed + (record and 1 or 0)
end

local reply
if ARGV[5] == 'a' then
  local start = 0
  if ARGV[6] then
    start = place_after(lane.dead, ARGV[6], ARGV[7])
  end
  local entries = redis.call('ZRANGE', lane.dead, start, start + limit - 1, 'WITHSCORES')
  for i = 1, #entries / 2 do
    change(entries[2 * i - 1])
  end
  reply = { changed }
  if #entries == 2 * limit then
    reply[2], reply[3] = entries[#entries], entries[#entries - 1]
  end
else
  for i = 6, #ARGV do
    local handle = find(lane, 'i' .. ARGV[i])
    if handle and redis.call('ZSCORE', lane.dead, handle) then
      change(handle)
    end
  end
  reply = { changed }
end
announce(ARGV[1], lane.due, restored)
return reply
