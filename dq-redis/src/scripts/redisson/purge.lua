-- Removes waiting and dead jobs of one queue, native ones and Java's, some at a time.
--
-- KEYS, ARGV, returns: as scripts/purge.lua
-- cost     O(log n) a job; with visibility `exact` O(length of the order list)

local lane = redisson_lane_at(0)
if reclaim(lane) then
  return nil
end

local limit, removed = clear(lane, tonumber(ARGV[1]))
if removed < limit then
  local most = math.min(limit - removed, max_per_call(lane))
  for _, member in ipairs(redis.call('ZRANGE', lane.timeout, 0, most - 1)) do
    local _, member_id = parse(member)
    local entry = member_id and unpack_entry(member_id, redis.call('HGET', lane.index, member_id))
    if entry then
      remove_entry(lane, entry)
    end
    redis.call('ZREM', lane.timeout, member)
    remove_from_order(lane, { member }, { member_id or '' })
    removed = removed + 1
  end
  if redis.call('ZCARD', lane.timeout) == 0 then
    if order_length(lane) > 0 then
      redis.call('UNLINK', lane.order)
    end
    redis.call('HDEL', lane.meta, 'garbage')
    sweep_index(lane)
  end
end
if removed < limit then
  removed = removed + #(redis.call('LPOP', lane.target, limit - removed) or {})
end
return removed
