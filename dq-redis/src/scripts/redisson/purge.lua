-- Removes waiting and dead jobs of one queue, native ones and Java's, some at a time.
--
-- KEYS, ARGV, returns: as scripts/purge.lua
-- cost     O(log n) a job; with order list `strict` O(length of that list)

local partition = java_at(0)
if requeue_expired(partition) then
  return nil
end

local limit, removed = clear(partition, tonumber(ARGV[1]))
if removed < limit then
  local most = math.min(limit - removed, at_once(partition))
  for _, member in ipairs(redis.call('ZRANGE', partition.timeout, 0, most - 1)) do
    local _, mark = parse(member)
    local note = mark and unpack_note(mark, redis.call('HGET', partition.outside, mark))
    if note then
      forget(partition, note)
    end
    redis.call('ZREM', partition.timeout, member)
    leave_order(partition, { member }, { mark or '' })
    removed = removed + 1
  end
  if redis.call('ZCARD', partition.timeout) == 0 then
    if order_length(partition) > 0 then
      redis.call('UNLINK', partition.order)
    end
    redis.call('HDEL', partition.meta, 'garbage')
    sweep_notes(partition)
  end
end
if removed < limit then
  removed = removed + #(redis.call('LPOP', partition.target, limit - removed) or {})
end
return removed
