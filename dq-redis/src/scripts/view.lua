-- The reply of get.lua for a native job; empty if the job is in none of the sets.
local function view(partition, handle)
  local record = redis.call('HGET', partition.job, handle)
  local state = redis.call('HGET', partition.state, handle) or ''
  for _, set in ipairs({ { 'w', partition.due }, { 'l', partition.lease }, { 'd', partition.dead } }) do
    local at = redis.call('ZSCORE', set[2], handle)
    if at then
      local reason = redis.call('HGET', partition.reason, handle) or ''
      return { now, handle, set[1], at, record, state, reason }
    end
  end
  return {}
end
