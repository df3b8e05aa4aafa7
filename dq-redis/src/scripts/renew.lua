-- Renews leases of one partition: each ends a given time from now.
--
-- ARGV     for each lease (at most 100): handle, fencing token, length of the lease in milliseconds
-- returns  for each lease its new end, or 0 if it is lost (expired or settled)
-- cost     O(log n) a lease

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
