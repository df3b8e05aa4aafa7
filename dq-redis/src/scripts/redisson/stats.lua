-- Counts the jobs of several queues, native ones and Java's.
--
-- KEYS, returns: as scripts/stats.lua
-- cost     O(log n) a queue

local replies = {}
for n = 0, #KEYS / KEYS_PER_PARTITION - 1 do
  local partition = redisson_partition_at(n)
  if requeue_expired(partition) then
    return nil
  end
  local listed = redis.call('LLEN', partition.target)
  local head, member_head = earliest(partition.due), earliest(partition.timeout)
  if listed > 0 then
    head = math.min(head or now, now)
  end
  if member_head and (not head or member_head < head) then
    head = member_head
  end
  local ready = redis.call('ZCOUNT', partition.due, '-inf', now)
    + redis.call('ZCOUNT', partition.timeout, '-inf', now) + listed
  local all = redis.call('ZCARD', partition.due) + redis.call('ZCARD', partition.timeout) + listed
  replies[n + 1] = {
    ready, all, redis.call('ZCARD', partition.lease), redis.call('ZCARD', partition.dead),
    head or false, redis.call('HGETALL', partition.meta),
  }
end
return replies
