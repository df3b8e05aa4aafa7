-- Cancels waiting jobs.
--
-- ARGV     1 and 2  the limit of the history: jobs, milliseconds
--          then the jobs (at most 100), each as 'i' and handle and tail, or as 'k' and a key
-- returns  a string with a letter for each job: 'C' cancelled, 'N' not found (or dead), 'A' already
--          running
-- cost     O(log n) a job; in Redisson's queues with visibility `exact` O(length of the order list)

read_history_limit(ARGV[1], ARGV[2])
check_ended_keys(partition)
check_types_of_job(partition)
local answers, cancelled = {}, 0
for i = 1, #ARGV - 2 do
  local handle, entry = find_job(partition, ARGV[i + 2])
  local due = handle and redis.call('ZSCORE', partition.due, handle)
  if entry then
    end_member(partition, entry, 'C')
  elseif due then
    redis.call('ZREM', partition.due, handle)
    end_unleased(partition, handle, 'C', score_time(due), '')
  end
  if entry or due then
    cancelled = cancelled + 1
    answers[i] = 'C'
  else
    answers[i] = handle and redis.call('ZSCORE', partition.lease, handle) and 'A' or 'N'
  end
end
flush_ended(partition)
add_total(partition, 'cancelled', cancelled)
return table.concat(answers)
