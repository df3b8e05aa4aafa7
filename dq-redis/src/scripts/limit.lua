-- Declares or overrides the limits of a queue, for every process.
--
-- KEYS     the keys of all partitions of the queue
-- ARGV     1  the channel
--          2  the field of `flow`: 'declared' or 'overriding'
--          3  the limits (see flow.rs); '' for no override
--          4  '' for new limits; to declare again what the server may have lost, the time at which it was
--             declared. The latest of these counts; a new declaration counts more
-- returns  nil, CLOSED or FORMAT: see requeue_expired; else {1 if the call changed anything, or 0; the time in
--          microseconds; 1 if a declaration is stored, or 0}
-- cost     O(log n) a partition

local partitions, running, jobs = {}, 0, 0
for n = 0, #KEYS / KEYS_PER_PARTITION - 1 do
  local partition = partition_at(n)
  local stop, refusal = requeue_expired(partition, 'write')
  if stop then
    return refusal
  end
  partitions[n + 1] = partition
  running = running + redis.call('ZCARD', partition.lease)
  for _, zset in ipairs({ partition.due, partition.parked, partition.dead }) do
    jobs = jobs + redis.call('ZCARD', zset)
  end
end
local first, field, limits, declared_at = partitions[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local stored = redis.call('HMGET', first.flow, 'declared', 'overriding', 'restored')
local both = { declared = stored[1] or UNLIMITED, overriding = stored[2] or '' }
local function in_force()
  return both.overriding ~= '' and both.overriding or both.declared
end
local max_before = group_limit(in_force())
-- This fails before anything is written if the key has another type.
redis.call('ZCARD', first.line)
local is_restored = declared_at and (not stored[1] or declared_at > (tonumber(stored[3] or '') or math.huge))
local changes = (not declared_at or is_restored) and both[field] ~= limits
if is_restored then
  redis.call('HSET', first.flow, 'restored', ARGV[4])
elseif stored[3] and field == 'declared' and not declared_at then
  redis.call('HDEL', first.flow, 'restored')
end
if limits == '' then
  redis.call('HDEL', first.flow, field)
elseif changes or is_restored then
  redis.call('HSET', first.flow, field, limits)
  stored[1] = stored[1] or field == 'declared'
end
if changes then
  both[field] = limits
  local max = group_limit(in_force())
  if max ~= max_before and (max or running + jobs > 0) then
    redis.call('HSET', first.flow, 'repair', 'c')
  end
end
if changes or is_restored or both.declared ~= UNLIMITED or both.overriding ~= '' then
  -- If nothing changes, a partition may have lost its mark with its other settings.
  for _, partition in ipairs(partitions) do
    mark_gate(partition, in_force())
  end
end
if changes then
  for _, partition in ipairs(partitions) do
    look_at(partition, now)
  end
  read_gate(first).remember_running(running)
  redis.call('PUBLISH', ARGV[1], now_text)
end
if running + jobs == 0 then
  for _, partition in ipairs(partitions) do
    forget_gate(partition)
  end
end
return { changes and 1 or 0, now_micros, stored[1] and 1 or 0 }
