-- Removes waiting and dead jobs of one queue, some at a time: native jobs, then members of
-- Redisson's sorted set, then payloads in the destination list. (Words: see java.lua.)
--
-- KEYS     the keys of the queue
-- ARGV     maximum number of jobs
-- returns  nil: repeat the call; else how many were removed, 0 when nothing remains
-- cost     O(log n) a job; with visibility `exact` O(length of the order list)

local partition = redisson_partition_at(0)
if requeue_expired(partition) then
  return nil
end

local limit, removed = clear(partition, tonumber(ARGV[1]))
if removed < limit then
  local max = math.min(limit - removed, max_per_call(partition))
  for _, member in ipairs(redis.call('ZRANGE', partition.timeout, 0, max - 1)) do
    local _, member_id = parse(member)
    local entry = member_id and unpack_entry(member_id, redis.call('HGET', partition.index, member_id))
    if entry then
      remove_entry(partition, entry)
    end
    redis.call('ZREM', partition.timeout, member)
    remove_from_order(partition, { member }, { member_id or '' })
    removed = removed + 1
  end
  if redis.call('ZCARD', partition.timeout) == 0 then
    if order_length(partition) > 0 then
      redis.call('UNLINK', partition.order)
    end
    redis.call('HDEL', partition.meta, 'garbage')
    sweep_index(partition)
  end
end
if removed < limit then
  removed = removed + #(redis.call('LPOP', partition.destination, limit - removed) or {})
end
return removed
