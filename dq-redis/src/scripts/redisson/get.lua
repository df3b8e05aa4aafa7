-- Reads one job, a native job or a member of Redisson's sorted set. (Words: see java.lua.)
--
-- KEYS     the keys of the queue
-- ARGV     the job: 'i' and handle and tail, or 'k' and a key; maximum age of a job in the history, in
--          milliseconds, -1 for no history
-- returns  nil: repeat the call; {} if there is none; else {now, handle, 'w' waiting | 'l' leased |
--          'd' dead, due time | end of the lease | time of death, record, state or '', reason or
--          ''}, or as scripts/get.lua for a job in the history. Of a member, which was never leased,
--          no state is returned
-- cost     O(log n)

local partition = redisson_partition_at(0)
local stop, refusal = requeue_expired(partition, 'read')
if stop then
  return refusal
end

local handle, entry = find_job(partition, ARGV[1])
if entry then
  local due, record = string.format('%.0f', entry.due), entry.record_prefix .. entry.payload
  return { now, entry.handle, 'w', due, record, '', '' }
end
if not handle then
  return view_past(partition, ARGV[1], tonumber(ARGV[2]))
end
return view(partition, handle)
