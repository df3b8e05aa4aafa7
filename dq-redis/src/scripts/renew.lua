-- Renews leases of one partition: each ends a given time from now.
--
-- KEYS     the keys of the partition
-- ARGV     for each lease (at most 100): handle, fencing token, length of the lease in milliseconds
-- returns  nil: repeat the call (expired leases); CLOSED: the partition is closed; else for each
--          lease its new end, or 0 if it is lost (expired or settled)
-- cost     O(log n) a lease

local partition = partition_at(0, KEYS_PER_PARTITION)
local stop, reply = requeue_expired(partition)
if stop then
  return reply
end

local ends, first_end = {}, nil
for i = 1, #ARGV / 3 do
  local handle = ARGV[3 * i - 2]
  local state = unpack_state(redis.call('HGET', partition.state, handle))
  ends[i] = 0
  if state and state.token ~= 0 and state.token == tonumber(ARGV[3 * i - 1]) then
    ends[i] = now + tonumber(ARGV[3 * i])
    redis.call('ZADD', partition.lease, ends[i], handle)
    first_end = math.min(first_end or ends[i], ends[i])
  end
end
if first_end then
  -- A lease may end earlier than before.
  look_at(partition, first_end)
end
return ends
