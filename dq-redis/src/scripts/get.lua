-- Reads one job.
--
-- KEYS     the keys of the partition
-- ARGV     the job: 'i' and handle and tail, or 'k' and a key
-- returns  nil: repeat the call (expired leases); CLOSED: the partition is closed; else the reply
--          of view.lua, which is {} if there is no such job
-- cost     O(log n)

local partition = partition_at(0, KEYS_PER_PARTITION)
local stop, reply = requeue_expired(partition)
if stop then
  return reply
end

local handle = find(partition, ARGV[1])
if not handle then
  return {}
end
return view(partition, handle)
