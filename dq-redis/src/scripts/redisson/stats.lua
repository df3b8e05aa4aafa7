-- Counts the jobs of several queues, native ones and Java's.
--
-- KEYS, returns: as scripts/stats.lua
-- cost     O(log n) a queue

local replies = {}
for n = 0, #KEYS / WIDTH - 1 do
  local lane = redisson_lane_at(n)
  if reclaim(lane) then
    return nil
  end
  local listed = redis.call('LLEN', lane.target)
  local head, member_head = head_of(lane.due), head_of(lane.timeout)
  if listed > 0 then
    head = math.min(head or now, now)
  end
  if member_head and (not head or member_head < head) then
    head = member_head
  end
  local ready = redis.call('ZCOUNT', lane.due, '-inf', now)
    + redis.call('ZCOUNT', lane.timeout, '-inf', now) + listed
  local all = redis.call('ZCARD', lane.due) + redis.call('ZCARD', lane.timeout) + listed
  replies[n + 1] = {
    ready, all, redis.call('ZCARD', lane.lease), redis.call('ZCARD', lane.dead),
    head or false, redis.call('HGETALL', lane.meta),
  }
end
return replies
