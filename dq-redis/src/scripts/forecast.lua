-- Counts the waiting jobs of one partition by due time.
--
-- KEYS     the keys of the partition
-- ARGV     times in ascending order (at most 1,001)
-- returns  nil: repeat the call (expired leases); CLOSED, FORMAT: see requeue_expired; else for each
--          pair of neighbouring times, the number of jobs that are due from the first until before
--          the second
-- cost     O(log n) a time

local partition = partition_at(0, KEYS_PER_PARTITION)
local stop, reply = requeue_expired(partition, 'read')
if stop then
  return reply
end

local counts = {}
for i = 1, #ARGV - 1 do
  counts[i] = redis.call('ZCOUNT', partition.due, ARGV[i], '(' .. ARGV[i + 1])
end
return counts
