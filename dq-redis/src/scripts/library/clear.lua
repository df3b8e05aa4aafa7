-- Removes waiting and dead jobs: at most `limit`, or at most 8 if records may be large. An entry that
-- is no job is deleted and counted, too. Returns the limit that applied, and the number of jobs
-- removed. The script calls flush_ended afterwards. A layout with waiting jobs in other keys replaces
-- this function.
local function clear(partition, limit)
  local removed = 0
  if redis.call('HGET', partition.meta, 'large') then
    -- A removal reads whole records, since the keys of the jobs are in them.
    limit = math.min(limit, 8)
  end
  local zsets = { partition.due, partition.dead }
  if has_groups(partition) then
    zsets[3] = partition.parked
  end
  for _, zset in ipairs(zsets) do
    local entries = {}
    if removed < limit then
      entries = redis.call('ZRANGE', zset, 0, limit - removed - 1, 'WITHSCORES')
    end
    for i = 1, #entries, 2 do
      local handle, is_dead = entries[i], zset == partition.dead
      end_unleased(
        partition, handle, 'M', not is_dead and score_time(entries[i + 1]) or nil,
        is_dead and redis.call('HGET', partition.reason, handle) or '', is_dead)
      redis.call('ZREM', zset, handle)
      redis.call('HDEL', partition.reason, handle)
      removed = removed + 1
    end
  end
  return limit, removed
end
