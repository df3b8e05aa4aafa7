-- Changes the due times of waiting jobs.
--
-- ARGV     1  the channel
--          then for each job (at most 100): the job, as 'i' and handle and tail, or as 'k' and a
--          key; its new due time, or '+' and a delay in milliseconds
-- returns  for each job three items: 'M' moved, handle and tail, new due time | 'N' not found (or
--          dead), '', 0 | 'A' already running, '', 0
-- cost     O(log n) a job

if has_groups(partition) then
  check_types_of_job(partition)
end
-- `moved` is due time, entry of the sorted set, due time, entry, …
local answers, moved = {}, {}
for i = 2, #ARGV, 2 do
  local job = find_job(partition, ARGV[i])
  local state = job and state_of(partition, job)
  local code, id, due = 'N', '', 0
  if state == 'w' then
    code, id, due = 'M', job.handle .. job.tail, resolve_due(ARGV[i + 1])
    moved[#moved + 1], moved[#moved + 2] = due, move_waiting(partition, job, due)
  elseif state == 'l' then
    code = 'A'
  end
  local length = #answers
  answers[length + 1], answers[length + 2], answers[length + 3] = code, id, due
end
publish_if_first(ARGV[1], partition, moved)
return answers
