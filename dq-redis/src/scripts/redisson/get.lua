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
local record = redis.call('HGET', lane.job, handle)
local state = redis.call('HGET', lane.state, handle) or ''
for _, place in ipairs({ { 'w', lane.due }, { 'l', lane.lease }, { 'd', lane.dead } }) do
  local at = redis.call('ZSCORE', place[2], handle)
  if at then
    local reason = redis.call('HGET', lane.reason, handle) or ''
    return { now, handle, place[1], at, record, state, reason }
  end
end
return {}
