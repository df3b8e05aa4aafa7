-- Looks at one job, native or among Java's.
--
-- KEYS, ARGV, returns: as scripts/get.lua
-- cost     O(log n)

local lane = java_at(0)
if reclaim(lane) then
  return nil
end

local handle, note = find_job(lane, ARGV[1])
if note then
  local due, record = string.format('%.0f', note.due), note.header .. note.payload
  return { now, note.handle, 'w', due, record, '', '' }
end
if not handle then
  return {}
end
return view(lane, handle)
