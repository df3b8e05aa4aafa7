-- Makes one step of a change of a queue's shard count: see resize.rs and shards/mod.rs.
--
-- KEYS     the keys of a partition
-- ARGV     the step and its arguments:
--          'stored'                    reads the stored layout; on the unsharded partition only
--          'commit', expected, next    stores the layout `next` if the stored one is `expected`; on
--                                      the unsharded partition only
--          'look', '', place           changes nothing
--          'mark'                      makes claims look at the queue's gate, if it has one
--          'close', change, place      closes the partition unless it is in use; `change` is the
--                                      number of the change
--          'open', change              opens the partition if this change or an earlier one closed
--                                      it
--          `place` is 'cluster' if new shards could not share the queue's limits, else ''
-- returns  'stored': the layout or ''; 'commit': 1 if `next` was stored, else 0; other steps: 1 if
--          the partition is in use (it holds jobs or pinned ids, or is paused, or has limits in a
--          cluster), else 0
-- cost     O(log n)

local partition = partition_at(0)
local step, argument = ARGV[1], ARGV[2]
partition.format = step ~= 'stored' and redis.call('HGET', partition.meta, 'format')
local refusal = refuse_format(partition.format, 'write')
if refusal then
  return refusal
end

if step == 'stored' then
  return redis.call('HGET', partition.meta, 'layout') or ''
elseif step == 'commit' then
  if (redis.call('HGET', partition.meta, 'layout') or '') ~= argument then
    return 0
  end
  redis.call('HSET', partition.meta, 'layout', ARGV[3])
  return 1
end

local flow = partition.flow
  and redis.call('HMGET', partition.flow, 'declared', 'overriding', 'closed_until') or {}
local limits = flow[2] or flow[1] or UNLIMITED
if step == 'mark' and ((flow[1] or UNLIMITED) ~= UNLIMITED or flow[2] or flow[3]) then
  mark_gate(partition, limits)
end

-- The marker of a closed partition: see CLOSED_PREFIX in library/access.lua.
local marker
for _, member in ipairs(redis.call('ZRANGEBYSCORE', partition.lease, '-inf', '-inf')) do
  if is_closed_marker(member) then
    marker = member
  end
end
local leases = redis.call('ZCARD', partition.lease) - (marker and 1 or 0)
local jobs = leases + redis.call('ZCARD', partition.due) + redis.call('ZCARD', partition.dead)
  + (has_groups(partition) and redis.call('ZCARD', partition.parked) or 0)
local is_in_use = jobs > 0 or redis.call('HGET', partition.meta, 'paused') ~= false
  or ARGV[3] == 'cluster' and limits ~= UNLIMITED
  or redis.call('ZCOUNT', partition.unpin, '(' .. now_text, '+inf') > 0
local closed_by = marker and tonumber(string.sub(marker, #CLOSED_PREFIX + 1))

if step == 'close' and not is_in_use and not (closed_by and closed_by >= tonumber(argument)) then
  redis.call('ZADD', partition.lease, '-inf', CLOSED_PREFIX .. argument)
  if marker then
    redis.call('ZREM', partition.lease, marker)
  end
  -- Claims look at the partition, and so come to know that it is closed.
  look_at(partition, '-inf')
elseif step == 'open' and closed_by and closed_by <= tonumber(argument) then
  redis.call('ZREM', partition.lease, marker)
end
return is_in_use and 1 or 0
