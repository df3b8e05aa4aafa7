-- Reads one job.
--
-- KEYS     the keys of the partition
-- ARGV     the job: 'i' and handle and tail, or 'k' and a key
-- returns  nil: repeat the call; CLOSED: the partition is closed; {} if there is none; else {now, handle,
--          'w' waiting, 'l' leased or 'd' dead, time of that, record, state or '', reason or ''}
-- cost     O(log n)

local partition = partition_at(0, KEYS_PER_PARTITION)
local ends, reply = requeue_expired(partition)
if ends then
  return reply
end

local handle = find(partition, ARGV[1])
if not handle then
  return {}
end
return view(partition, handle)
