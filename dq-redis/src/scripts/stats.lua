-- Counts the jobs of several partitions.
--
-- KEYS     the keys of each partition
-- returns  nil: repeat the call; else for each partition {ready, all that wait, running, dead, earliest due
--          time or nil, {names and values of its settings and totals}}, or CLOSED
-- cost     O(log n) a partition

local replies = {}
for n = 0, #KEYS / KEYS_PER_PARTITION - 1 do
  local partition = partition_at(n, KEYS_PER_PARTITION)
  local ends, refusal = requeue_expired(partition)
  if ends and not refusal then
    return nil
  end
  replies[n + 1] = refusal or {
    redis.call('ZCOUNT', partition.due, '-inf', now), redis.call('ZCARD', partition.due),
    redis.call('ZCARD', partition.lease), redis.call('ZCARD', partition.dead),
    earliest(partition.due) or false, redis.call('HGETALL', partition.meta),
  }
end
return replies
