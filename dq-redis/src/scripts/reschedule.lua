-- Changes the due times of waiting jobs.
--
-- ARGV     1  the channel
--          then for each job (at most 100): the job, as 'i' and handle and tail, or as 'k' and a
--          key; its new due time, or '+' and a delay in milliseconds
-- returns  for each job three items: 'M' moved, handle and tail, new due time | 'N' not found (or
--          dead), '', 0 | 'A' already running, '', 0
-- cost     O(log n) a job

local answers, moved, moved_members = {}, {}, {}
for i = 1, (#ARGV - 1) / 2 do
  local handle, entry = find_job(partition, ARGV[2 * i])
  local code, id, due = 'N', '', 0
  if entry then
    code, due = 'M', resolve_due(ARGV[2 * i + 1])
    id = move_member(partition, entry, due)
    moved_members[#moved_members + 1], moved_members[#moved_members + 2] = due, entry.member
  elseif handle and redis.call('ZSCORE', partition.due, handle) then
    code, due = 'M', resolve_due(ARGV[2 * i + 1])
    id = handle .. id_tail(redis.call('HGET', partition.job, handle))
    set_due(partition, handle, due)
    moved[#moved + 1], moved[#moved + 2] = due, handle
  elseif handle and redis.call('ZSCORE', partition.lease, handle) then
    code = 'A'
  end
  local at = #answers
  answers[at + 1], answers[at + 2], answers[at + 3] = code, id, due
end
publish_if_first(ARGV[1], partition, partition.timeout, moved_members)
publish_if_first(ARGV[1], partition, partition.due, moved)
return answers
