-- Cancels waiting jobs.
--
-- ARGV     1 and 2  the limit of the history: jobs, milliseconds
--          then the jobs (at most 100), each as 'i' and handle and tail, or as 'k' and a key
-- returns  a string with a letter for each job: 'C' cancelled, 'N' not found (or dead), 'A' already
--          running
-- cost     O(log n) a job, or that of removing it from a list if the layout has one

read_history_limit(ARGV[1], ARGV[2])
check_ended_keys(partition)
check_types_of_job(partition)
local answers, cancelled = {}, 0
for i = 1, #ARGV - 2 do
  local job = find_job(partition, ARGV[i + 2])
  local state, time
  if job then
    state, time = state_of(partition, job)
  end
  answers[i] = 'N'
  if state == 'w' then
    end_waiting(partition, job, time, 'C')
    cancelled = cancelled + 1
    answers[i] = 'C'
  elseif state == 'l' then
    answers[i] = 'A'
  end
end
flush_ended(partition)
add_total(partition, 'cancelled', cancelled)
return table.concat(answers)
