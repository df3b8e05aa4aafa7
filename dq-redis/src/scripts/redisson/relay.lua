-- Moves due members to the target list, for Java clients that only take.
--
-- KEYS     the keys of the queue
-- ARGV     most members
-- returns  {now, how many were moved, when the next is due or nil}
-- cost     O(log n) a member; with order list `strict` O(length of that list)

local lane = java_at(0)
local moved = transfer(lane, tonumber(ARGV[1]))
return { now, moved, head_of(lane.timeout) or false }
