-- Counts the jobs of several queues.
--
-- KEYS     the keys of each queue
-- returns  nil: ask again; else {for each queue: {ready, all that wait, running, dead, earliest due
--          time or nil, names and values of its settings and totals}}
-- cost     O(log n) a queue

local replies = {}
for n = 0, #KEYS / WIDTH - 1 do
  local lane = lane_at(n, WIDTH)
  if reclaim(lane) then
    return nil
  end
  replies[n + 1] = {
    redis.call('ZCOUNT', lane.due, '-inf', now), redis.call('ZCARD', lane.due),
    redis.call('ZCARD', lane.lease), redis.call('ZCARD', lane.dead),
    head_of(lane.due) or false, redis.call('HGETALL', lane.meta),
  }
end
return replies
