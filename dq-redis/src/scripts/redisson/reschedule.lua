-- Moves jobs of one queue in time, native ones and those among Java's.
--
-- KEYS, ARGV, returns: as scripts/reschedule.lua
-- cost     O(log n) a job

local lane = java_at(0)
if reclaim(lane) then
  return nil
end

local answers, moved, moved_outside = {}, {}, {}
for i = 1, (#ARGV - 1) / 2 do
  local handle, note = find_job(lane, ARGV[2 * i])
  local code, name, due = 'N', '', 0
  if note then
    code, due = 'M', resolve(ARGV[2 * i + 1])
    name = note.handle .. record_tail(note.header)
    redis.call('ZADD', lane.timeout, due, note.member)
    redis.call('HSET', lane.outside, note.mark, pack_note(due, note.handle, note.header))
    moved_outside[#moved_outside + 1], moved_outside[#moved_outside + 2] = due, note.member
  elseif handle then
    if redis.call('ZSCORE', lane.due, handle) then
      code, due = 'M', resolve(ARGV[2 * i + 1])
      name = handle .. record_tail(redis.call('HGET', lane.job, handle))
      redis.call('ZADD', lane.due, due, handle)
      moved[#moved + 1], moved[#moved + 2] = due, handle
    elseif redis.call('ZSCORE', lane.lease, handle) then
      code = 'A'
    end
  end
  local at = #answers
  answers[at + 1], answers[at + 2], answers[at + 3] = code, name, due
end
announce(ARGV[1], lane.timeout, moved_outside)
announce(ARGV[1], lane.due, moved)
return answers
