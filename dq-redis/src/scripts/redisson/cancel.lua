-- Takes jobs of one queue back, native ones and those among Java's.
--
-- KEYS, ARGV, returns: as scripts/cancel.lua
-- cost     O(log n) a job; with order list `strict` O(length of that list)

local partition = java_at(0)
if requeue_expired(partition) then
  return nil
end

local answers = {}
for i, target in ipairs(ARGV) do
  local handle, note = find_job(partition, target)
  answers[i] = 'N'
  if note then
    redis.call('ZREM', partition.timeout, note.member)
    leave_order(partition, { note.member }, { note.mark })
    forget(partition, note)
    answers[i] = 'C'
  elseif handle then
    if redis.call('ZREM', partition.due, handle) == 1 then
      delete_job(partition, handle, record_key(redis.call('HGET', partition.job, handle)))
      answers[i] = 'C'
    elseif redis.call('ZSCORE', partition.lease, handle) then
      answers[i] = 'A'
    end
  end
end
return table.concat(answers)
