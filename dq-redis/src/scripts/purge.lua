-- Removes waiting and dead jobs of one queue, some at a time.
--
-- KEYS     the keys of the queue
-- ARGV     most jobs
-- returns  nil: ask again; LAYOUT and a layout: not the one believed in, and nothing was done;
--          else how many were removed; 0 when nothing is left
-- cost     O(log n) a job

local lane = lane_at(0, WIDTH)
if reclaim(lane) then
  return nil
end
local other = other_layout(lane)
if other then
  return other_layout_reply(other)
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
count(lane, 'removed', removed)
return removed
