-- Reads one job, a native job or a member of Redisson's sorted set. (Words: see java.lua.)
--
-- KEYS     the keys of the queue
-- ARGV     the job: 'i' and handle and tail, or 'k' and a key
-- returns  nil: repeat the call; {} if there is none; else {now, handle, 'w' waiting | 'l' leased |
--          'd' dead, due time | end of the lease | time of death, record, state or '', reason or
--          ''}. A member has no state: it was never leased
-- cost     O(log n)

local partition = redisson_partition_at(0)
if requeue_expired(partition) then
  return nil
end

local handle, entry = find_job(partition, ARGV[1])
if entry then
  local due, record = string.format('%.0f', entry.due), entry.record_prefix .. entry.payload
  return { now, entry.handle, 'w', due, record, '', '' }
end
if not handle then
  return {}
end
return view(partition, handle)
