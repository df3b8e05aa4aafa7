-- Takes jobs of one queue back, native ones and those among Java's.
--
-- KEYS, ARGV, returns: as scripts/cancel.lua
-- cost     O(log n) a job; with order list `strict` O(length of that list)

local lane = java_at(0)
if reclaim(lane) then
  return nil
end

local answers = {}
for i, target in ipairs(ARGV) do
  local handle, note = find_job(lane, target)
  answers[i] = 'N'
  if note then
    redis.call('ZREM', lane.timeout, note.member)
    leave_order(lane, { note.member }, { note.mark })
    forget(lane, note)
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
