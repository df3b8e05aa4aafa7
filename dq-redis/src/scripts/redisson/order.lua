-- The order list: Redisson's second copy of the members. And how much one call may move. keys.lua has
-- the words.

-- Number of members or payloads that are read before their sizes are added up, so that no call
-- reads many large ones.
local READ_BATCH = 8
-- Maximum number of bytes that one call moves, unless a single payload is larger.
local MAX_BYTES = 1048576
-- Maximum number of members that one call removes.
local MAX_REMOVED = 100

-- The length of the order list. Fails on a key of another type, except with visibility `hidden`:
-- then nothing is added there, and such a key counts as empty.
local function order_length(partition)
  if VISIBILITY ~= 'hidden' then
    return redis.call('LLEN', partition.order)
  end
  local length = redis.pcall('LLEN', partition.order)
  return type(length) == 'number' and length or 0
end

-- The length of an order list in which a removal with visibility `exact` takes about 5 ms: it passes
-- half of the entries on average, at about 55 ns each.
local ENTRIES_PER_CALL = 180000

-- Maximum number of members that this call removes, so that it ends within 5 ms.
local function max_per_call(partition)
  if VISIBILITY ~= 'exact' then
    return MAX_REMOVED
  end
  local max = math.floor(ENTRIES_PER_CALL / (order_length(partition) + 1))
  return math.max(1, math.min(MAX_REMOVED, max))
end

-- Quarantines a member that is packed in neither format: it would break Java's transfer script. It
-- moves from the sorted set and the order list to the partition's `quarantine`.
local function quarantine_member(partition, member, score)
  local length = order_length(partition)
  quarantine(partition, member, score)
  redis.call('ZREM', partition.timeout, member)
  if length > 0 then
    redis.call('LREM', partition.order, 1, member)
  end
end

-- Removes members from the order list, or counts them as garbage there, which sweep_order removes.
-- With visibility `hidden` only members that Java offered (with an id of 8 bytes) are in the list.
local function remove_from_order(partition, members, member_ids)
  local garbage = 0
  for i, member in ipairs(members) do
    if VISIBILITY == 'exact' then
      redis.call('LREM', partition.order, 1, member)
    elseif VISIBILITY == 'approximate' or #member_ids[i] == 8 then
      garbage = garbage + 1
    end
  end
  add_total(partition, 'garbage', garbage)
end

-- Sweeps the order list if a tenth of it is garbage: pops entries from its front and appends those
-- that still wait. It pops ten for each member just `removed`, so that the sweep keeps up, but not
-- more than MAX_BYTES if entries have the size of the largest of those members.
local function sweep_order(partition, removed)
  local garbage = tonumber(redis.call('HGET', partition.meta, 'garbage') or 0) or 0
  local length = order_length(partition)
  if garbage <= 0 or garbage * 10 < length then
    return
  end
  local largest = 1
  for _, member in ipairs(removed) do
    largest = math.max(largest, #member)
  end
  local max = math.max(1, math.min(10 * #removed, math.floor(MAX_BYTES / largest)))
  if length == 0 then
    redis.call('HDEL', partition.meta, 'garbage')
    return
  end
  local members = redis.call('LPOP', partition.order, max)
  local scores = redis.call('ZMSCORE', partition.timeout, unpack(members))
  local kept = {}
  for i, member in ipairs(members) do
    if scores[i] then
      kept[#kept + 1] = member
    end
  end
  send('RPUSH', partition.order, kept)
  local remaining = garbage - (#members - #kept)
  if remaining > 0 then
    redis.call('HSET', partition.meta, 'garbage', string.format('%.0f', remaining))
  else
    redis.call('HDEL', partition.meta, 'garbage')
  end
end
