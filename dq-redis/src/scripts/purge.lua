-- Removes waiting and dead jobs of one queue, some at a time.
--
-- KEYS     the keys of the queue
-- ARGV     most jobs
-- returns  nil: ask again; LAYOUT and a layout: not the one believed in, and nothing was done;
--          else how many were removed; 0 when nothing is left
-- cost     O(log n) a job

local lane = lane_at(0, WIDTH)
if reclaim(lane) then
  return nil
end
local other = other_layout(lane)
if other then
  return other_layout_reply(other)
end

local _, removed = clear(lane, tonumber(ARGV[1]))
count(lane, 'removed', removed)
return removed
