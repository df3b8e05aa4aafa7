-- Moves due members to the target list, for Java clients that only take; none of a paused queue.
--
-- KEYS     the keys of the queue
-- ARGV     most members
-- returns  {now, how many were moved, when the next is due or nil}
-- cost     O(log n) a member; with order list `strict` O(length of that list)

local partition = java_at(0)
if redis.call('HGET', partition.meta, 'paused') then
  return { now, 0, false }
end
local moved = transfer(partition, tonumber(ARGV[1]))
return { now, moved, earliest(partition.timeout) or false }
