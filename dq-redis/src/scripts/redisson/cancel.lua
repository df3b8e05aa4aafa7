-- Cancels jobs of one queue, native ones and members of Java's sorted set.
--
-- KEYS, ARGV, returns: as scripts/cancel.lua
-- cost     O(log n) a job; with visibility `exact` O(length of the order list)

local lane = redisson_lane_at(0)
if reclaim(lane) then
  return nil
end

local answers = {}
for i, target in ipairs(ARGV) do
  local handle, entry = find_job(lane, target)
  answers[i] = 'N'
  if entry then
    redis.call('ZREM', lane.timeout, entry.member)
    remove_from_order(lane, { entry.member }, { entry.member_id })
    remove_entry(lane, entry)
    answers[i] = 'C'
  elseif handle then
    if redis.call('ZREM', lane.due, handle) == 1 then
      erase(lane, handle, record_key(redis.call('HGET', lane.job, handle)))
      answers[i] = 'C'
    elseif redis.call('ZSCORE', lane.lease, handle) then
      answers[i] = 'A'
    end
  end
end
return table.concat(answers)
