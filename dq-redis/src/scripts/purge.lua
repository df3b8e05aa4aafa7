-- Removes waiting and dead jobs. The client repeats the call until it returns 0.
--
-- ARGV     1 and 2  the limit of the history: jobs, milliseconds
--          3  maximum number of jobs
-- returns  the number of jobs removed, 0 if none is left
-- cost     O(log n) a job; in Redisson's queues with visibility `exact` O(length of the order list)

read_history_limit(ARGV[1], ARGV[2])
check_ended_keys(partition)
check_types_of_job(partition)
-- `clear` uses these only after it has removed waiting jobs.
redis.call('ZCARD', partition.dead)
redis.call('HSTRLEN', partition.reason, '')
local _, removed = clear(partition, tonumber(ARGV[3]))
flush_ended(partition)
add_total(partition, 'removed', removed)
if removed == 0 then
  forget_gate(partition)
end
return removed
