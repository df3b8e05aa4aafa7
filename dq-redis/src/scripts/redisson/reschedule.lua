-- Moves jobs of one queue in time, native ones and those among Java's.
--
-- KEYS, ARGV, returns: as scripts/reschedule.lua
-- cost     O(log n) a job

local partition = java_at(0)
if requeue_expired(partition) then
  return nil
end

local answers, moved, moved_outside = {}, {}, {}
for i = 1, (#ARGV - 1) / 2 do
  local handle, note = find_job(partition, ARGV[2 * i])
  local code, name, due = 'N', '', 0
  if note then
    code, due = 'M', resolve_due(ARGV[2 * i + 1])
    name = note.handle .. record_tail(note.header)
    redis.call('ZADD', partition.timeout, due, note.member)
    redis.call('HSET', partition.outside, note.mark, pack_note(due, note.handle, note.header))
    moved_outside[#moved_outside + 1], moved_outside[#moved_outside + 2] = due, note.member
  elseif handle then
    if redis.call('ZSCORE', partition.due, handle) then
      code, due = 'M', resolve_due(ARGV[2 * i + 1])
      name = handle .. record_tail(redis.call('HGET', partition.job, handle))
      redis.call('ZADD', partition.due, due, handle)
      moved[#moved + 1], moved[#moved + 2] = due, handle
    elseif redis.call('ZSCORE', partition.lease, handle) then
      code = 'A'
    end
  end
  local at = #answers
  answers[at + 1], answers[at + 2], answers[at + 3] = code, name, due
end
publish_if_first(ARGV[1], partition.timeout, moved_outside)
publish_if_first(ARGV[1], partition.due, moved)
return answers
