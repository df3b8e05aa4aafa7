-- Makes leases of one queue last from now.
--
-- KEYS     the keys of the queue
-- ARGV     for each lease (at most 100): handle, token, milliseconds
-- returns  nil: ask again; else for each lease its new end, or 0 if it is lost; then the layout if it is
--          not the one believed in and something was lost
-- cost     O(log n) a lease

local lane = lane_at(0, WIDTH)
if reclaim(lane) then
  return nil
end

local ends, missed = {}, false
for i = 1, #ARGV / 3 do
  local handle = ARGV[3 * i - 2]
  local state = unpack_state(redis.call('HGET', lane.state, handle))
  ends[i] = 0
  if state and state.token ~= 0 and state.token == tonumber(ARGV[3 * i - 1]) then
    ends[i] = now + tonumber(ARGV[3 * i])
    redis.call('ZADD', lane.lease, ends[i], handle)
  else
    missed = true
  end
end
ends[#ends + 1] = missed and other_layout(lane) or nil
return ends
