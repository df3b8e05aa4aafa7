-- Removes waiting and dead jobs of one partition. The client repeats the call until it returns 0.
--
-- KEYS     the keys of the partition
-- ARGV     maximum number of jobs
-- returns  nil: repeat the call (expired leases); CLOSED: the partition is closed; else the number
--          of jobs removed, 0 if none is left
-- cost     O(log n) a job

local partition = partition_at(0, KEYS_PER_PARTITION)
local stop, reply = requeue_expired(partition)
if stop then
  return reply
end

local _, removed = clear(partition, tonumber(ARGV[1]))
add_total(partition, 'removed', removed)
return removed
