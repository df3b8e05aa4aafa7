-- Looks at one job.
--
-- KEYS     the keys of the queue
-- ARGV     which: 'i' and handle and tail, or 'k' and a key
-- returns  nil: ask again; {} if there is none, or {layout} if it is not the one believed in; else {now, handle, state: 'w' waiting, 'l' leased,
--          'd' dead, time of that, record, state or '', reason or ''}
-- cost     O(log n)

local lane = lane_at(0, WIDTH)
if reclaim(lane) then
  return nil
end

local handle = find(lane, ARGV[1])
if not handle then
  return { other_layout(lane) }
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
