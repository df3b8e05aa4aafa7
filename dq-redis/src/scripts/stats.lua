-- Counts the jobs of several partitions.
--
-- KEYS     the keys of each partition
-- returns  nil: repeat the call (expired leases); FORMAT: see requeue_expired; else for each partition
--          CLOSED if it is closed, or {number of ready jobs, of waiting jobs (with the ready ones), of
--          leased jobs, of dead jobs, earliest due time or nil, {field, value, field, value, … of
--          `meta`}, fields of `flow` or nil: {now, `declared`, `overriding`, `rate`,
--          `closed_until`}}
-- cost     O(log n) a partition

local replies = {}
for n = 0, #KEYS / KEYS_PER_PARTITION - 1 do
  local partition = partition_at(n)
  local stop, refusal = requeue_expired(partition, 'read')
  if stop and (not refusal or refusal.ok ~= 'CLOSED') then
    return refusal
  elseif stop then
    replies[n + 1] = refusal
  else
    local ready, waiting, first_due = count_waiting(partition)
    local gate = partition.flow and partition.format and redis.call(
      'HMGET', partition.flow, 'declared', 'overriding', 'rate', 'closed_until')
    replies[n + 1] = {
      ready, waiting, redis.call('ZCARD', partition.lease), redis.call('ZCARD', partition.dead),
      first_due or false, redis.call('HGETALL', partition.meta),
      gate and { now, unpack(gate) } or false,
    }
  end
end
return replies
