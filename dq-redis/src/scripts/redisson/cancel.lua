-- Cancels jobs of one queue, native jobs and members of Redisson's sorted set. (Words: see
-- java.lua.)
--
-- KEYS     the keys of the queue
-- ARGV     the jobs (at most 100): 'i' and handle and tail, or 'k' and a key
-- returns  nil: repeat the call; else a string with a letter for each job: 'C' cancelled, 'N' not
--          found, 'A' already running
-- cost     O(log n) a job; with visibility `exact` O(length of the order list)

local partition = redisson_partition_at(0)
if requeue_expired(partition) then
  return nil
end

local answers = {}
for i, target in ipairs(ARGV) do
  local handle, entry = find_job(partition, target)
  answers[i] = 'N'
  if entry then
    redis.call('ZREM', partition.timeout, entry.member)
    remove_from_order(partition, { entry.member }, { entry.member_id })
    remove_entry(partition, entry)
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
