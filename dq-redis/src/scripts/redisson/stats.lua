-- Counts the jobs of several queues: native jobs, members of Redisson's sorted set, and payloads in
-- the destination list, which count as due now. (Words: see java.lua.)
--
-- KEYS     the keys of each queue
-- returns  nil: repeat the call; FORMAT: see requeue_expired; else for each queue {ready, ready and
--          scheduled, running, dead, earliest due time or nil, {fields and values of `meta`}}
-- cost     O(log n) a queue

local replies = {}
for n = 0, #KEYS / KEYS_PER_PARTITION - 1 do
  local partition = redisson_partition_at(n)
  local stop, refusal = requeue_expired(partition, 'read')
  if stop then
    return refusal
  end
  local in_destination = redis.call('LLEN', partition.destination)
  local first_due, first_member_due = earliest(partition.due), earliest(partition.timeout)
  if in_destination > 0 then
    first_due = math.min(first_due or now, now)
  end
  if first_member_due and (not first_due or first_member_due < first_due) then
    first_due = first_member_due
  end
  local ready = redis.call('ZCOUNT', partition.due, '-inf', now)
    + redis.call('ZCOUNT', partition.timeout, '-inf', now) + in_destination
  local waiting = redis.call('ZCARD', partition.due) + redis.call('ZCARD', partition.timeout)
    + in_destination
  replies[n + 1] = {
    ready, waiting, redis.call('ZCARD', partition.lease), redis.call('ZCARD', partition.dead),
    first_due or false, redis.call('HGETALL', partition.meta),
  }
end
return replies
