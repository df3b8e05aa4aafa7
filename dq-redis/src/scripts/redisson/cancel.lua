-- Cancels jobs of one queue, native jobs and members of Redisson's sorted set. (Words: see
-- java.lua.)
--
-- KEYS     the keys of the queue
-- ARGV     the limit of the history: jobs, milliseconds; then the jobs (at most 100): 'i' and handle
--          and tail, or 'k' and a key
-- returns  nil: repeat the call; FORMAT: see requeue_expired; else a string with a letter for each
--          job: 'C' cancelled, 'N' not found, 'A' already running
-- cost     O(log n) a job; with visibility `exact` O(length of the order list)

local partition = redisson_partition_at(0)
local stop, refusal = requeue_expired(partition, 'write')
if stop then
  return refusal
end

read_history_limit(ARGV[1], ARGV[2])
check_ended_keys(partition)
check_types_of_job(partition)
-- Fails before anything is written if the key has another type.
order_length(partition)
local answers = {}
for i = 1, #ARGV - 2 do
  local handle, entry = find_job(partition, ARGV[i + 2])
  local due = handle and redis.call('ZSCORE', partition.due, handle)
  answers[i] = 'N'
  if entry then
    end_member(partition, entry, 'C')
    answers[i] = 'C'
  elseif due then
    redis.call('ZREM', partition.due, handle)
    end_unleased(partition, handle, 'C', score_time(due), '')
    answers[i] = 'C'
  elseif handle and redis.call('ZSCORE', partition.lease, handle) then
    answers[i] = 'A'
  end
end
flush_ended(partition)
return table.concat(answers)
