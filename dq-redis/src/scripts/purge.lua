-- Removes waiting and dead jobs of one partition, some at a time.
--
-- KEYS     the keys of the partition
-- ARGV     most jobs
-- returns  nil: repeat the call; CLOSED: the partition is closed; else how many were removed, 0 when
--          nothing is left
-- cost     O(log n) a job

local partition = partition_at(0, KEYS_PER_PARTITION)
local ends, reply = requeue_expired(partition)
if ends then
  return reply
end

local _, removed = clear(partition, tonumber(ARGV[1]))
add_total(partition, 'removed', removed)
return removed
