-- What scripts do before they read or change a partition: types of keys, formats, closed partitions,
-- and expired leases.

-- Returns call(partition, ...). If a key of the partition has another type, sets
-- `partition.refusal` to WRONG_TYPE and returns nil, so that the call still serves its other
-- partitions. Skips a partition that has a refusal.
local function catch_wrong_type(call, partition, ...)
  if partition.refusal then
    return nil
  end
  local succeeded, reply = pcall(call, partition, ...)
  if succeeded then
    return reply
  end
  local message = type(reply) == 'table' and reply.err or tostring(reply)
  -- Redis has no other sign of a wrong type; before version 7 the code is not at the beginning.
  if not string.find(message, 'WRONGTYPE', 1, true) then
    error(reply, 0)
  end
  partition.refusal = redis.status_reply('WRONG_TYPE')
end

-- A change of the number of shards closes a partition: it adds a marker, this prefix and the number
-- of the change, to `lease` with the score -inf. Scripts read expired leases first and so see the
-- marker without a further command. It is longer than a handle, so it is never taken for a job.
local CLOSED_PREFIX = 'closed by change '

local function is_closed_marker(member)
  return string.sub(member, 1, #CLOSED_PREFIX) == CLOSED_PREFIX
end

-- The status reply FORMAT if the field `format` of `meta`, given as `stored`, says that this version
-- is too old for this kind of access, 'write' or 'read'; else nil.
local function refuse_format(stored, access)
  if not stored then
    return nil
  end
  local write, read = string.match(stored, '^%d+/(%d+)/(%d+)$')
  local oldest = tonumber(access == 'write' and write or read)
  if oldest and oldest <= OWN_FORMAT then
    return nil
  end
  return redis.status_reply('FORMAT')
end

-- How many expired leases this call may still end, in all its partitions; and one more, as text.
local expired_left, expired_read = 100, '101'

-- Ends expired leases: their jobs wait again, with one more loss. Every script
-- that reads or changes jobs calls it first. `access` is 'write' or 'read'; 'hold' for calls of
-- holders of leases, which a raised format does not refuse; nil for claims, which have read the
-- format, and take the room of the leases (`partition.expired`) themselves.
-- Returns `stop, reply`: false, and the script continues; or true, and the script replies
--   nil     more leases may have expired: the client repeats the call, so that no single call runs
--           long (a claim goes on, and reports that it should be repeated)
--   CLOSED  a change of the number of shards has closed the partition: the client looks up the number
--   FORMAT  this version is too old for the format of the partition
local function requeue_expired(partition, access)
  if access == 'write' or access == 'read' then
    partition.format = redis.call('HGET', partition.meta, 'format')
    local refusal = refuse_format(partition.format, access)
    if refusal then
      return true, refusal
    end
  end
  -- One more than may end, to know whether there are more, and to meet the marker of a closed partition.
  local expired = redis.call(
    'ZRANGEBYSCORE', partition.lease, '-inf', now_text, 'LIMIT', '0', expired_read)
  if #expired == 0 then
    return false
  end
  -- Everything is read before anything is written, so that a key of another type changes nothing.
  local states = redis.call('HMGET', partition.state, unpack(expired))
  local has_record = {}
  for i, handle in ipairs(expired) do
    -- HSTRLEN, not HGET: a record may be large, and is rarely needed.
    has_record[i] = redis.call('HSTRLEN', partition.job, handle) > 0
    if not has_record[i] and is_closed_marker(handle) then
      return true, redis.status_reply('CLOSED')
    end
  end
  redis.call('ZCARD', partition.due)
  redis.call('ZCARD', partition.quarantine)
  local gate = access and read_gate(partition)
  local has_more = #expired > expired_left
  expired[expired_left + 1] = nil
  if #expired == 0 then
    return true
  end
  expired_left = expired_left - #expired
  expired_read, partition.expired = expired_left + 1, expired
  -- ZREM comes first, since it takes no memory: a server out of memory then allows the other writes.
  redis.call('ZREM', partition.lease, unpack(expired))
  for i, handle in ipairs(expired) do
    if not has_record[i] then
      quarantine(partition, handle, now)
    else
      local state = unpack_state(states[i])
        or fresh_state(redis.call('HGET', partition.job, handle), now)
      state.token = 0
      state.losses = state.losses + 1
      redis.call('HSET', partition.state, handle, pack_state(state))
      -- NX: a job that is also in `due`, which only another program can cause, keeps its due time.
      redis.call('ZADD', partition.due, 'NX', state.due, handle)
    end
  end
  if gate then
    gate.offer_room(expired)
  end
  return has_more
end
