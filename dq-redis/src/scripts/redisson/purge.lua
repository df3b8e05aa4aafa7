-- Removes waiting and dead jobs of one queue, native ones and Java's, some at a time.
--
-- KEYS, ARGV, returns: as scripts/purge.lua
-- cost     O(log n) a job; with order list `strict` O(length of that list)

local lane = java_at(0)
if reclaim(lane) then
  return nil
end

local limit, removed = tonumber(ARGV[1]), 0
if redis.call('HGET', lane.meta, 'large') then
  -- Records are read for their keys.
  limit = math.min(limit, 8)
end
for _, zset in ipairs({ lane.due, lane.dead }) do
  local handles = redis.call('ZRANGE', zset, 0, limit - removed - 1)
  if limit - removed > 0 and #handles > 0 then
    local records = redis.call('HMGET', lane.job, unpack(handles))
    for i, handle in ipairs(handles) do
      local key = zset == lane.due and records[i] and record_key(records[i]) or ''
      erase(lane, handle, key)
    end
    redis.call('ZREM', zset, unpack(handles))
    redis.call('HDEL', lane.reason, unpack(handles))
    removed = removed + #handles
  end
end
if removed < limit then
  local most = math.min(limit - removed, at_once(lane))
  for _, member in ipairs(redis.call('ZRANGE', lane.timeout, 0, most - 1)) do
    local _, mark = parse(member)
    local note = mark and unpack_note(mark, redis.call('HGET', lane.outside, mark))
    if note then
      forget(lane, note)
    end
    redis.call('ZREM', lane.timeout, member)
    leave_order(lane, member, mark or '')
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
