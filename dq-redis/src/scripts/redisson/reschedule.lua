-- Changes the due times of jobs of one queue, native jobs and members of Redisson's sorted set.
-- (Words: see java.lua.)
--
-- KEYS     the keys of the queue
-- ARGV     the channel that wakes listeners; then for each job (at most 100): 'i' and handle and
--          tail, or 'k' and a key; its new due time in milliseconds, or '+' and a delay
-- returns  nil: repeat the call; else for each job three items: 'M' moved | 'N' not found | 'A'
--          already running; handle and tail if moved, else ''; the new due time if moved, else 0
-- cost     O(log n) a job

local partition = redisson_partition_at(0)
local stop, refusal = requeue_expired(partition, 'write')
if stop then
  return refusal
end

local answers, moved, moved_members = {}, {}, {}
for i = 1, (#ARGV - 1) / 2 do
  local handle, entry = find_job(partition, ARGV[2 * i])
  local code, id, due = 'N', '', 0
  if entry then
    code, due = 'M', resolve_due(ARGV[2 * i + 1])
    id = entry.handle .. id_tail(entry.record_prefix)
    redis.call('ZADD', partition.timeout, due, entry.member)
    local packed = pack_entry(due, entry.handle, entry.record_prefix)
    redis.call('HSET', partition.index, entry.member_id, packed)
    moved_members[#moved_members + 1], moved_members[#moved_members + 2] = due, entry.member
  elseif handle then
    if redis.call('ZSCORE', partition.due, handle) then
      code, due = 'M', resolve_due(ARGV[2 * i + 1])
      id = handle .. id_tail(redis.call('HGET', partition.job, handle))
      set_due(partition, handle, due)
      moved[#moved + 1], moved[#moved + 2] = due, handle
    elseif redis.call('ZSCORE', partition.lease, handle) then
      code = 'A'
    end
  end
  local at = #answers
  answers[at + 1], answers[at + 2], answers[at + 3] = code, id, due
end
publish_if_first(ARGV[1], partition, partition.timeout, moved_members)
publish_if_first(ARGV[1], partition, partition.due, moved)
return answers
