-- Cancels waiting jobs of one partition.
--
-- KEYS     the keys of the partition
-- ARGV     the jobs (at most 100), each as 'i' and handle and tail, or as 'k' and a key
-- returns  nil: repeat the call (expired leases); CLOSED: the partition is closed; else a string
--          with a letter for each job: 'C' cancelled, 'N' not found (or dead), 'A' already running
-- cost     O(log n) a job

local partition = partition_at(0, KEYS_PER_PARTITION)
local stop, reply = requeue_expired(partition)
if stop then
  return reply
end

local answers, cancelled = {}, 0
for i, target in ipairs(ARGV) do
  local handle = find(partition, target)
  if not handle then
    answers[i] = 'N'
  elseif redis.call('ZREM', partition.due, handle) == 1 then
    delete_job(partition, handle, record_key(redis.call('HGET', partition.job, handle)))
    cancelled = cancelled + 1
    answers[i] = 'C'
  elseif redis.call('ZSCORE', partition.lease, handle) then
    answers[i] = 'A'
  else
    answers[i] = 'N'
  end
end
add_total(partition, 'cancelled', cancelled)
return table.concat(answers)
