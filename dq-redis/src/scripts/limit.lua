-- Declares or overrides the limits of a queue, for every process.
--
-- KEYS     the keys of all partitions of the queue
-- ARGV     1  the channel
--          2  the field of `flow`: 'declared' or 'overriding'
--          3  the limits (see flow.rs); '' for no override
--          4  'lost' if they were declared before, and count only if the server has lost them; else ''
-- returns  nil, CLOSED or FORMAT: see requeue_expired; else 1 if the call changed anything, or 0
-- cost     O(log n) a partition; for another limit of groups O(n) with n leases

local partitions, running = {}, 0
for n = 0, #KEYS / KEYS_PER_PARTITION - 1 do
  local partition = partition_at(n)
  local stop, refusal = requeue_expired(partition, 'write')
  if stop then
    return refusal
  end
  partitions[n + 1] = partition
  running = running + redis.call('ZCARD', partition.lease)
end
local first, field, limits = partitions[1], ARGV[2], ARGV[3]
local stored = redis.call('HMGET', first.flow, 'declared', 'overriding')
local both = { declared = stored[1] or UNLIMITED, overriding = stored[2] or '' }
local function in_force()
  return both.overriding ~= '' and both.overriding or both.declared
end
local function mark_all()
  for _, partition in ipairs(partitions) do
    mark_gate(partition, in_force())
  end
end
local max_before = group_limit(in_force())
if both[field] == limits or ARGV[4] == 'lost' and stored[1] then
  if both.declared ~= UNLIMITED or both.overriding ~= '' then
    -- A partition may have lost its mark with its other settings.
    mark_all()
  end
  return 0
end
-- This fails before anything is written if the key has another type.
redis.call('ZCARD', first.line)
if limits == '' then
  redis.call('HDEL', first.flow, field)
else
  redis.call('HSET', first.flow, field, limits)
end
both[field] = limits
local max = group_limit(in_force())
if max ~= max_before then
  local has_parked = redis.call('ZCARD', first.groups) > 0
  open_groups(first).recount(max and partitions or {})
  if has_parked then
    redis.call('HSET', first.flow, 'returning', '')
  end
end
mark_all()
for _, partition in ipairs(partitions) do
  look_at(partition, now)
end
read_gate(first).note_running(running)
redis.call('PUBLISH', ARGV[1], now_text)
return 1
