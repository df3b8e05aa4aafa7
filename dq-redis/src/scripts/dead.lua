-- Replays or removes dead jobs of one partition. A job whose key is live again is not replayed.
--
-- ARGV     1  the channel
--          2  'replay' or 'remove'
--          3  due time of replayed jobs, or '+' and a delay in milliseconds
--          4 and 5  the limit of the history: jobs, milliseconds
--          then: handle and tail of each job, in one string
-- returns  the number of jobs changed
-- cost     O(log n) a job

read_history_limit(ARGV[4], ARGV[5])
check_ended_keys(partition)
check_types_of_job(partition)
redis.call('HSTRLEN', partition.reason, '')
local is_replay, due = ARGV[2] == 'replay', resolve_due(ARGV[3])
-- `replayed` is due time, handle, due time, handle, …
local changed, replayed = 0, {}

-- Makes a dead job wait again. Returns false if its key is live: a key may be live once only.
local function replay(handle, record)
  local key = record_key(record)
  if key ~= '' then
    if find_job(partition, 'k' .. key) then
      return false
    end
    redis.call('HSET', partition.key, key, handle)
  end
  local state = unpack_state(redis.call('HGET', partition.state, handle)) or fresh_state(record, 0)
  state.due, state.attempts, state.losses, state.postponed = tonumber(due), 0, 0, 0
  state.note = note_with_error(state.note, nil)
  redis.call('HSET', partition.state, handle, pack_state(state))
  redis.call('ZADD', partition.due, due, handle)
  replayed[#replayed + 1], replayed[#replayed + 2] = due, handle
  return true
end

local function remove(handle)
  local reason = redis.call('HGET', partition.reason, handle) or ''
  end_unleased(partition, handle, 'M', nil, reason, true)
  add_total(partition, 'removed', 1)
  return true
end

for i = 6, #ARGV do
  local job = find_job(partition, 'i' .. ARGV[i])
  if job and state_of(partition, job) == 'd' then
    local handle, record = job.handle, redis.call('HGET', partition.job, job.handle)
    if is_replay and replay(handle, record) or not is_replay and remove(handle) then
      redis.call('ZREM', partition.dead, handle)
      redis.call('HDEL', partition.reason, handle)
      changed = changed + 1
    end
  end
end
flush_ended(partition)
publish_if_first(ARGV[1], partition, replayed)
return changed
