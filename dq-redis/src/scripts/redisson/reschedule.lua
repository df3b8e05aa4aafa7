-- Changes the due times of jobs of one queue, native ones and members of Java's sorted set.
--
-- KEYS, ARGV, returns: as scripts/reschedule.lua
-- cost     O(log n) a job

local lane = redisson_lane_at(0)
if reclaim(lane) then
  return nil
end

local answers, moved, moved_members = {}, {}, {}
for i = 1, (#ARGV - 1) / 2 do
  local handle, entry = find_job(lane, ARGV[2 * i])
  local code, id, due = 'N', '', 0
  if entry then
    code, due = 'M', resolve(ARGV[2 * i + 1])
    id = entry.handle .. record_tail(entry.header)
    redis.call('ZADD', lane.timeout, due, entry.member)
    redis.call('HSET', lane.index, entry.member_id, pack_entry(due, entry.handle, entry.header))
    moved_members[#moved_members + 1], moved_members[#moved_members + 2] = due, entry.member
  elseif handle then
    if redis.call('ZSCORE', lane.due, handle) then
      code, due = 'M', resolve(ARGV[2 * i + 1])
      id = handle .. record_tail(redis.call('HGET', lane.job, handle))
      redis.call('ZADD', lane.due, due, handle)
      moved[#moved + 1], moved[#moved + 2] = due, handle
    elseif redis.call('ZSCORE', lane.lease, handle) then
      code = 'A'
    end
  end
  local at = #answers
  answers[at + 1], answers[at + 2], answers[at + 3] = code, id, due
end
announce(ARGV[1], lane.timeout, moved_members)
announce(ARGV[1], lane.due, moved)
return answers
