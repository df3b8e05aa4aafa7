-- Cancels waiting jobs of one partition.
--
-- KEYS     the keys of the partition
-- ARGV     1 and 2  the limit of the history: jobs, milliseconds
--          then the jobs (at most 100), each as 'i' and handle and tail, or as 'k' and a key
-- returns  nil: repeat the call (expired leases); CLOSED, FORMAT: see requeue_expired; else a string
--          with a letter for each job: 'C' cancelled, 'N' not found (or dead), 'A' already running
-- cost     O(log n) a job

local partition = partition_at(0, KEYS_PER_PARTITION)
local stop, reply = requeue_expired(partition, 'write')
if stop then
  return reply
end

read_history_limit(ARGV[1], ARGV[2])
check_ended_keys(partition)
check_types_of_job(partition)
local answers, cancelled = {}, 0
for i = 1, #ARGV - 2 do
  local handle = find_stored(partition, ARGV[i + 2])
  local due = handle and redis.call('ZSCORE', partition.due, handle)
  if not handle then
    answers[i] = 'N'
  elseif due then
    redis.call('ZREM', partition.due, handle)
    end_unleased(partition, handle, 'C', score_time(due), '')
    cancelled = cancelled + 1
    answers[i] = 'C'
  elseif redis.call('ZSCORE', partition.lease, handle) then
    answers[i] = 'A'
  else
    answers[i] = 'N'
  end
end
flush_ended(partition)
add_total(partition, 'cancelled', cancelled)
return table.concat(answers)
