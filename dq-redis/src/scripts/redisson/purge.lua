-- Removes waiting and dead jobs of one queue, native ones and Java's, some at a time.
--
-- KEYS, ARGV, returns: as scripts/purge.lua
-- cost     O(log n) a job; with order list `strict` O(length of that list)

local lane = java_at(0)
if reclaim(lane) then
  return nil
end

local limit, removed = clear(lane, tonumber(ARGV[1]))
if removed < limit then
  local most = math.min(limit - removed, at_once(lane))
  for _, member in ipairs(redis.call('ZRANGE', lane.timeout, 0, most - 1)) do
    local _, mark = parse(member)
    local note = mark and unpack_note(mark, redis.call('HGET', lane.outside, mark))
    if note then
      forget(lane, note)
    end
    redis.call('ZREM', lane.timeout, member)
    leave_order(lane, { member }, { mark or '' })
    removed = removed + 1
  end
  if redis.call('ZCARD', lane.timeout) == 0 then
    if order_length(lane) > 0 then
      redis.call('UNLINK', lane.order)
    end
    redis.call('HDEL', lane.meta, 'garbage')
    sweep_notes(lane)
  end
end
if removed < limit then
  removed = removed + #(redis.call('LPOP', lane.target, limit - removed) or {})
end
return removed
