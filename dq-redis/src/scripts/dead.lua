-- Replays or removes dead jobs of one partition. A job whose key is live again is not replayed.
--
-- KEYS     the keys of the partition
-- ARGV     1  the channel
--          2  'replay' or 'remove'
--          3  due time of replayed jobs, or '+' and a delay in milliseconds
--          4  maximum number of jobs
--          5  which jobs: 'a' all, oldest death first, or 'n' those named
--          then after 'a': time of death and handle, as the previous call returned them; none in
--          the first call; after 'n': handle and tail of each job, in one string
-- returns  nil: repeat the call (expired leases); CLOSED: the partition is closed; else {number of
--          jobs changed; then, if there may be more: time of death and handle of the last job read}
-- cost     O(log n) a job

local partition = partition_at(0, KEYS_PER_PARTITION)
local stop, early_reply = requeue_expired(partition)
if stop then
  return early_reply
end

local replay, due, limit = ARGV[2] == 'replay', resolve_due(ARGV[3]), tonumber(ARGV[4])
-- `replayed` is due time, handle, due time, handle, …
local changed, replayed = 0, {}

local function change(handle)
  local record = redis.call('HGET', partition.job, handle)
  local key = record_key(record)
  if not record then
    quarantine(partition, handle, now)
  elseif not replay then
    delete_job(partition, handle, '')
    add_total(partition, 'removed', 1)
  else
    if key ~= '' then
      -- A key may be live once only, so this job stays dead.
      if key_is_live(partition, key) then
        return
      end
      redis.call('HSET', partition.key, key, handle)
    end
    local state = unpack_state(redis.call('HGET', partition.state, handle)) or fresh_state(record, 0)
    state.due, state.attempts, state.losses = tonumber(due), 0, 0
    redis.call('HSET', partition.state, handle, pack_state(state))
    redis.call('ZADD', partition.due, due, handle)
    replayed[#replayed + 1], replayed[#replayed + 2] = due, handle
  end
  redis.call('ZREM', partition.dead, handle)
  redis.call('HDEL', partition.reason, handle)
  changed = changed + (record and 1 or 0)
end

local reply = { 0 }
if ARGV[5] == 'a' then
  local start = 0
  if ARGV[6] then
    start = rank_after(partition.dead, ARGV[6], ARGV[7])
  end
  local entries = redis.call('ZRANGE', partition.dead, start, start + limit - 1, 'WITHSCORES')
  for i = 1, #entries / 2 do
    change(entries[2 * i - 1])
  end
  if #entries == 2 * limit then
    reply[2], reply[3] = entries[#entries], entries[#entries - 1]
  end
else
  for i = 6, #ARGV do
    local handle = find(partition, 'i' .. ARGV[i])
    if handle and redis.call('ZSCORE', partition.dead, handle) then
      change(handle)
    end
  end
end
reply[1] = changed
publish_if_first(ARGV[1], partition.due, replayed)
return reply
