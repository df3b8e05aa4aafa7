-- Lists dead jobs of one shard with their keys.
--
-- KEYS     the keys of the shard
-- ARGV     most jobs; then either 'a' for all, with time and handle of the last one of the call
--          before if it is not the first, or 'n' and handle and tail of each
-- returns  nil: ask again; else {time and handle to go on from or '', then for each job: handle and
--          tail, key or ''}
-- cost     O(log n) a job

local lane = lane_at(0, WIDTH)
if reclaim(lane) then
  return nil
end
local other = other_layout(lane)
if other then
  return other_layout_reply(other)
end

local limit = tonumber(ARGV[1])
local reply = { '', '' }

local function list(handle)
  local record = redis.call('HGET', lane.job, handle)
  if record and #record >= RECORD_BYTES then
    reply[#reply + 1] = handle .. record_tail(record)
    reply[#reply + 1] = record_key(record)
  end
end

if ARGV[2] == 'a' then
  local start = 0
  if ARGV[3] then
    start = place_after(lane.dead, ARGV[3], ARGV[4])
  end
  local entries = redis.call('ZRANGE', lane.dead, start, start + limit - 1, 'WITHSCORES')
  for i = 1, #entries / 2 do
    list(entries[2 * i - 1])
  end
  if #entries == 2 * limit then
    reply[1], reply[2] = entries[#entries], entries[#entries - 1]
  end
else
  for i = 3, #ARGV do
    local handle = find(lane, 'i' .. ARGV[i])
    if handle and redis.call('ZSCORE', lane.dead, handle) then
      list(handle)
    end
  end
end
return reply
