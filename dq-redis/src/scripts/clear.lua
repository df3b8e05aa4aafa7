-- Removes waiting and dead jobs (with `redisson`: native jobs): at most `limit`, or at most 8 if
-- records may be large. Returns the limit that applied, and the number of jobs removed.
local function clear(partition, limit)
  local removed = 0
  if redis.call('HGET', partition.meta, 'large') then
    -- Whole records are read, since the keys of the jobs are in them.
    limit = math.min(limit, 8)
  end
  for _, zset in ipairs({ partition.due, partition.dead }) do
    local handles = {}
    if removed < limit then
      handles = redis.call('ZRANGE', zset, 0, limit - removed - 1)
    end
    if #handles > 0 then
      local records = redis.call('HMGET', partition.job, unpack(handles))
      for i, handle in ipairs(handles) do
        -- A dead job has given up its key, which may belong to another job by now.
        local key = zset == partition.due and records[i] and record_key(records[i]) or ''
        delete_job(partition, handle, key)
      end
      redis.call('ZREM', zset, unpack(handles))
      redis.call('HDEL', partition.reason, unpack(handles))
      removed = removed + #handles
    end
  end
  return limit, removed
end
