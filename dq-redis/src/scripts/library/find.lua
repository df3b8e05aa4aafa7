-- Finds a job that a caller names, and changes jobs that wait. A layout that keeps waiting jobs in
-- other keys defines these functions again, and so replaces them.

-- The job that `target` names: 'i' with handle and tail, or 'k' with a key. Nil if there is no such
-- job, else a table with `handle` and `tail`.
local function find_job(partition, target)
  local name = string.sub(target, 2)
  local is_key = string.byte(target) == string.byte('k')
  local handle = string.sub(name, 1, HANDLE_BYTES)
  if is_key then
    handle = redis.call('HGET', partition.key, name)
  end
  local record = handle and redis.call('HGET', partition.job, handle)
  if not record or #record < RECORD_BYTES then
    return nil
  elseif not is_key and id_tail(record) ~= string.sub(name, HANDLE_BYTES + 1) then
    return nil
  end
  return { handle = handle, tail = id_tail(record), record = record }
end

-- The state of a job as from find_job, and a time as text: 'w' waiting and the due time, 'l' leased
-- and the end of the lease, or 'd' dead and the time of death. Nil if it is none of these.
local function state_of(partition, job)
  local sets = { { 'w', partition.due }, { 'l', partition.lease }, { 'd', partition.dead } }
  if has_groups(partition) then
    sets[4] = { 'w', partition.parked }
  end
  for _, set in ipairs(sets) do
    local time = redis.call('ZSCORE', set[2], job.handle)
    if time then
      return set[1], time
    end
  end
end

-- Ends a job that waits until `due`: see end_unleased.
local function end_waiting(partition, job, due, letter)
  redis.call('ZREM', partition.due, job.handle)
  end_unleased(partition, job.handle, letter, score_time(due), '')
end

-- Gives a waiting job another due time, which is also its first one. Returns the changed entry of
-- the sorted set.
local function move_waiting(partition, job, due)
  local state = unpack_state(redis.call('HGET', partition.state, job.handle))
  local groups = groups_of(partition)
  if groups then
    groups.leave(job.handle, job.record)
  end
  redis.call('ZADD', partition.due, due, job.handle)
  if state and state.postponed ~= 0 then
    state.postponed = 0
    redis.call('HSET', partition.state, job.handle, pack_state(state))
  end
  return job.handle
end

-- A job as from find_job as the reply of get.lua: {now, handle, state and time as from state_of,
-- record, stored state or '', reason or ''}; {} if the job has no state.
local function view_job(partition, job)
  local state, time = state_of(partition, job)
  if not state then
    return {}
  end
  local record = redis.call('HGET', partition.job, job.handle)
  local stored = redis.call('HGET', partition.state, job.handle) or ''
  local reason = redis.call('HGET', partition.reason, job.handle) or ''
  return { now, job.handle, state, time, record, stored, reason }
end

-- The job that `target` names by id, 'i' with handle and tail, as the reply of get.lua, if it is in
-- the history and ended at most `max_age` milliseconds ago; else {}.
local function view_past(partition, target, max_age)
  local handle = string.sub(target, 2, 1 + HANDLE_BYTES)
  local is_id = string.byte(target) == string.byte('i')
  local ended_at = is_id and redis.call('ZSCORE', partition.ended, handle)
  local is_recent = ended_at and tonumber(ended_at) >= now - max_age
  local past = is_recent and redis.call('HGET', partition.past, handle)
  if past and tail_of_past(past) == string.sub(target, 2 + HANDLE_BYTES) then
    return { now, handle, 'e', ended_at, past, '', '' }
  end
  return {}
end
