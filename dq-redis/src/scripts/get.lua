-- Reads one job.
--
-- KEYS     the keys of the partition
-- ARGV     1  the job: 'i' and handle and tail, or 'k' and a key
--          2  maximum age of a job in the history, in milliseconds; -1 for no history
-- returns  nil: repeat the call (expired leases); CLOSED, FORMAT: see requeue_expired; else the reply
--          of library/view.lua, which is {} if there is no such job; of a job in the history {now, handle,
--          'e', time of the end, past job, '', ''}
-- cost     O(log n)

local partition = partition_at(0, KEYS_PER_PARTITION)
local stop, reply = requeue_expired(partition, 'read')
if stop then
  return reply
end

local handle = find_stored(partition, ARGV[1])
if not handle then
  return view_past(partition, ARGV[1], tonumber(ARGV[2]))
end
return view(partition, handle)
