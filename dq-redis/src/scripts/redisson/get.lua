-- Looks at one job, native or among Java's.
--
-- KEYS, ARGV, returns: as scripts/get.lua
-- cost     O(log n)

local partition = java_at(0)
if requeue_expired(partition) then
  return nil
end

local handle, note = find_job(partition, ARGV[1])
if note then
  local due, record = string.format('%.0f', note.due), note.header .. note.payload
  return { now, note.handle, 'w', due, record, '', '' }
end
if not handle then
  return {}
end
return view(partition, handle)
