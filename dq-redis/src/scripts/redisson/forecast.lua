-- Counts the waiting jobs of one queue by due time: native jobs, members of Redisson's sorted set,
-- and payloads in the destination list, which count as due now. (Words: see java.lua.)
--
-- KEYS     the keys of the queue
-- ARGV     times in ascending order (at most 1,001)
-- returns  nil: repeat the call; FORMAT: see requeue_expired; else for each pair of neighbouring times, the number of jobs that
--          are due from the first until before the second
-- cost     O(log n) a time

local partition = redisson_partition_at(0)
local stop, refusal = requeue_expired(partition, 'read')
if stop then
  return refusal
end

local in_destination = redis.call('LLEN', partition.destination)
local counts = {}
for i = 1, #ARGV - 1 do
  local from, to = ARGV[i], ARGV[i + 1]
  counts[i] = redis.call('ZCOUNT', partition.due, from, '(' .. to)
    + redis.call('ZCOUNT', partition.timeout, from, '(' .. to)
  if tonumber(from) <= now and now < tonumber(to) then
    counts[i] = counts[i] + in_destination
  end
end
return counts
