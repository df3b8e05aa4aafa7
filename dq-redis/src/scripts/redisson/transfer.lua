-- Moves due members of Redisson's sorted set to the destination list, for queues that only Java
-- clients consume, unless they are paused. (Words: see keys.lua.)
--
-- ARGV     maximum number of members
-- returns  FORMAT: see refuse_format; {now, how many left the sorted set, due time of the next member
--          or nil}
-- cost     O(log n) a member; with visibility `exact` O(length of the order list)

-- At most `max` due members, oldest first, of about MAX_BYTES in all.
local function due_members(partition, max)
  local members, bytes = {}, 0
  while #members < max and bytes <= MAX_BYTES do
    local batch = math.min(max - #members, READ_BATCH)
    local added =
      redis.call('ZRANGEBYSCORE', partition.timeout, '-inf', now, 'LIMIT', #members, batch)
    for _, member in ipairs(added) do
      members[#members + 1] = member
      bytes = bytes + #member
    end
    if #added < batch then
      break
    end
  end
  return members
end

-- Does what Java's transfer script does, but quarantines members in neither format, which are counted
-- too. Returns how many members left the sorted set.
local function transfer(partition, max)
  local members = due_members(partition, math.min(max, max_per_call(partition)))
  if #members == 0 then
    return 0
  end
  -- Fails on a key of another type before anything is removed.
  redis.call('LLEN', partition.destination)
  order_length(partition)
  local payloads, moved, member_ids = {}, {}, {}
  for _, member in ipairs(members) do
    local format, member_id, payload = parse(member)
    if format then
      payloads[#payloads + 1], moved[#moved + 1] = payload, member
      member_ids[#member_ids + 1] = member_id
    else
      quarantine_member(partition, member, now)
    end
  end
  if #moved > 0 then
    -- ZREM comes first, since it takes no memory: a server out of memory then allows the RPUSH, which
    -- cannot fail for another reason after LLEN.
    redis.call('ZREM', partition.timeout, unpack(moved))
    redis.call('RPUSH', partition.destination, unpack(payloads))
    remove_from_order(partition, moved, member_ids)
    sweep_order(partition, moved)
  end
  return #members
end

local partition = partition_at(0)
local paused, format = unpack(redis.call('HMGET', partition.meta, 'paused', 'format'))
local refusal = refuse_format(format, 'write')
if refusal then
  return refusal
elseif paused then
  return { now, 0, false }
end
local count = transfer(partition, tonumber(ARGV[1]))
return { now, count, earliest(partition.timeout) or false }
