-- Reads one job, native or a member of Java's sorted set.
--
-- KEYS, ARGV, returns: as scripts/get.lua
-- cost     O(log n)

local lane = redisson_lane_at(0)
if reclaim(lane) then
  return nil
end

local handle, entry = find_job(lane, ARGV[1])
if entry then
  local due, record = string.format('%.0f', entry.due), entry.header .. entry.payload
  return { now, entry.handle, 'w', due, record, '', '' }
end
if not handle then
  return {}
end
return view(lane, handle)
