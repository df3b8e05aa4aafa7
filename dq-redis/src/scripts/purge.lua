-- Removes waiting and dead jobs of one partition. The client repeats the call until it returns 0.
--
-- KEYS     the keys of the partition
-- ARGV     1 and 2  the limit of the history: jobs, milliseconds
--          3  maximum number of jobs
-- returns  nil: repeat the call (expired leases); CLOSED, FORMAT: see requeue_expired; else the number
--          of jobs removed, 0 if none is left
-- cost     O(log n) a job

local partition = partition_at(0, KEYS_PER_PARTITION)
local stop, reply = requeue_expired(partition, 'write')
if stop then
  return reply
end

read_history_limit(ARGV[1], ARGV[2])
check_ended_keys(partition)
check_types_of_job(partition)
-- `clear` uses these only after it has removed waiting jobs.
redis.call('ZCARD', partition.dead)
redis.call('HSTRLEN', partition.reason, '')
local _, removed = clear(partition, tonumber(ARGV[3]))
flush_ended(partition)
add_total(partition, 'removed', removed)
return removed
