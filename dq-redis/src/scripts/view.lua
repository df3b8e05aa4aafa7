-- One job as the reply of get.lua: {now, handle, letter, time, record, packed state or '', reason
-- or ''}. The letter and the time are 'w' and the due time of a waiting job, 'l' and the end of the
-- lease of a leased job, or 'd' and the time of death of a dead one. {} if the job is none of
-- these.
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
