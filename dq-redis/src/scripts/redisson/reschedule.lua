-- Changes the due times of jobs of one queue, native ones and members of Java's sorted set.
--
-- KEYS, ARGV, returns: as scripts/reschedule.lua
-- cost     O(log n) a job

local partition = redisson_partition_at(0)
if requeue_expired(partition) then
  return nil
end

local answers, moved, moved_members = {}, {}, {}
for i = 1, (#ARGV - 1) / 2 do
  local handle, entry = find_job(partition, ARGV[2 * i])
  local code, id, due = 'N', '', 0
  if entry then
    code, due = 'M', resolve_due(ARGV[2 * i + 1])
    id = entry.handle .. id_tail(entry.header)
    redis.call('ZADD', partition.timeout, due, entry.member)
    redis.call('HSET', partition.index, entry.member_id, pack_entry(due, entry.handle, entry.header))
    moved_members[#moved_members + 1], moved_members[#moved_members + 2] = due, entry.member
  elseif handle then
    if redis.call('ZSCORE', partition.due, handle) then
      code, due = 'M', resolve_due(ARGV[2 * i + 1])
      id = handle .. id_tail(redis.call('HGET', partition.job, handle))
      redis.call('ZADD', partition.due, due, handle)
      moved[#moved + 1], moved[#moved + 2] = due, handle
    elseif redis.call('ZSCORE', partition.lease, handle) then
      code = 'A'
    end
  end
  local at = #answers
  answers[at + 1], answers[at + 2], answers[at + 3] = code, id, due
end
publish_if_first(ARGV[1], partition.timeout, moved_members)
publish_if_first(ARGV[1], partition.due, moved)
return answers
