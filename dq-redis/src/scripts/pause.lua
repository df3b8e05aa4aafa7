-- Pauses or resumes one queue, in every process.
--
-- KEYS     the keys of the queue
-- ARGV     the channel; '1' to pause, '0' to resume
-- returns  LAYOUT and a layout: not the one believed in, and nothing was done;
--          1 if that changed anything, else 0
-- cost     O(1)

local lane = lane_at(0, WIDTH)
local other = other_layout(lane)
if other then
  return other_layout_reply(other)
end
if ARGV[2] == '1' then
  return redis.call('HSETNX', lane.meta, 'paused', 1)
end
local changed = redis.call('HDEL', lane.meta, 'paused')
if changed == 1 then
  local head = head_of(lane.due)
  redis.call('PUBLISH', ARGV[1], string.format('%.0f', head or now))
end
return changed
