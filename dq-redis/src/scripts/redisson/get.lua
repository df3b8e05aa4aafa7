-- Reads one job, native or a member of Java's sorted set.
--
-- KEYS, ARGV, returns: as scripts/get.lua
-- cost     O(log n)

local partition = redisson_partition_at(0)
if requeue_expired(partition) then
  return nil
end

local handle, entry = find_job(partition, ARGV[1])
if entry then
  local due, record = string.format('%.0f', entry.due), entry.header .. entry.payload
  return { now, entry.handle, 'w', due, record, '', '' }
end
if not handle then
  return {}
end
return view(partition, handle)
