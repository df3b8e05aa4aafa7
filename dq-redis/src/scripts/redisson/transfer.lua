-- Moves due members to the target list, for queues that only Java clients consume. A paused queue is
-- left alone.
--
-- KEYS     the keys of the queue
-- ARGV     most members
-- returns  {now, how many were moved, when the next is due or nil}
-- cost     O(log n) a member; with visibility `exact` O(length of the order list)

-- Due members, oldest first, up to the most bytes that a call may move.
local function due_members(partition, most)
  local members, bytes = {}, 0
  while #members < most and bytes <= MOST_BYTES do
    local few = math.min(most - #members, FEW)
    local some =
      redis.call('ZRANGEBYSCORE', partition.timeout, '-inf', now, 'LIMIT', #members, few)
    for _, member in ipairs(some) do
      members[#members + 1] = member
      bytes = bytes + #member
    end
    if #some < few then
      break
    end
  end
  return members
end

-- Moves due members to the target list, as Java's transfer script does. Returns how many left the set.
local function transfer(partition, most)
  local members = due_members(partition, math.min(most, max_per_call(partition)))
  if #members == 0 then
    return 0
  end
  local payloads, gone, member_ids = {}, {}, {}
  for _, member in ipairs(members) do
    local format, member_id, payload = parse(member)
    if format then
      payloads[#payloads + 1], gone[#gone + 1], member_ids[#member_ids + 1] = payload, member, member_id
    else
      quarantine_member(partition, member, now)
    end
  end
  if #gone > 0 then
    -- Fails on a key of another type before anything is removed.
    redis.call('LLEN', partition.target)
    redis.call('HSTRLEN', partition.meta, '')
    order_length(partition)
    redis.call('ZREM', partition.timeout, unpack(gone))
    redis.call('RPUSH', partition.target, unpack(payloads))
    remove_from_order(partition, gone, member_ids)
    sweep_order(partition, gone)
  end
  return #members
end

local partition = redisson_partition_at(0)
if redis.call('HGET', partition.meta, 'paused') then
  return { now, 0, false }
end
local moved = transfer(partition, tonumber(ARGV[1]))
return { now, moved, earliest(partition.timeout) or false }
