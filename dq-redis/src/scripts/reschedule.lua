-- Changes the due times of jobs of one partition.
--
-- KEYS     the keys of the partition
-- ARGV     the channel; then for each job (at most 100): 'i' and handle and tail, or 'k' and a key; due
--          time
-- returns  nil: repeat the call; CLOSED: the partition is closed; else for each job: 'M' moved | 'N' not
--          found | 'A' running, handle and tail, due time
-- cost     O(log n) a job

local partition = partition_at(0, KEYS_PER_PARTITION)
local ends, reply = requeue_expired(partition)
if ends then
  return reply
end

local answers, moved = {}, {}
for i = 1, (#ARGV - 1) / 2 do
  local handle = find(partition, ARGV[2 * i])
  local code, name, due = 'N', '', 0
  if handle then
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
publish_if_first(ARGV[1], partition.due, moved)
return answers
