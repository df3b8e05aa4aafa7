-- One job as the reply of get.lua: {now, handle, letter, time, record, state or '', reason or ''}. The
-- letter and the time are 'w' and the due time of a waiting job, 'l' and the end of the lease of a
-- leased job, or 'd' and the time of death of a dead one. {} if the job is none of these.
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

-- The job that `target` names by id, 'i' with handle and tail, if it is in the history and ended at
-- most `max_age` milliseconds ago; else {}.
local function view_past(partition, target, max_age)
  local handle = string.sub(target, 2, 1 + HANDLE_BYTES)
  local is_id = string.byte(target) == string.byte('i')
  local at = is_id and redis.call('ZSCORE', partition.ended, handle)
  local past = at and tonumber(at) >= now - max_age and redis.call('HGET', partition.past, handle)
  if past and tail_of_past(past) == string.sub(target, 2 + HANDLE_BYTES) then
    return { now, handle, 'e', at, past, '', '' }
  end
  return {}
end
