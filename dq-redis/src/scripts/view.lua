-- What get.lua answers about a native job; empty if it stands nowhere.
local function view(lane, handle)
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
end
