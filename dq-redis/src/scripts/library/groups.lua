-- Groups: how many jobs of each run, and which due jobs wait for room there, the *parked* ones. The rule is
-- that of dq_core::machine, in groups.rs there, except that a script does not return parked jobs when there
-- is room, since they may be in another shard: it marks the group, and the next claim returns the first ones.

-- Maximum number of jobs that a claim parks, as in dq_core::machine, and that it returns.
local MAX_PARKED = 1000

-- The functions for a partition's groups. Few queues limit groups, so they are inside, as those of
-- read_gate.
local function open_groups(partition)
  if partition.groups_opened then
    return partition.groups_opened
  end
  local groups = {}
  partition.groups_opened = groups
  local key, flow, parked = partition.groups, partition.flow, partition.parked
  -- Bytes of an entry after the group: zero byte, due time, handle, shard.
  local ENTRY_BYTES = 1 + 8 + HANDLE_BYTES + 2
  local shard = struct.pack('>I2', tonumber(string.match(partition.due, '^{[^}#]*#%d+%.(%d+)}') or 0))

  local function read_group(record)
    local flags, at = string.byte(record, RECORD_BYTES), RECORD_BYTES + 1
    if flags % 2 == 1 then
      at = at + 1 + string.byte(record, at)
    end
    if flags % 4 >= 2 then
      at = at + 4
    end
    local headers = string.sub(record, at + 4, at + 3 + struct.unpack('>I4', record, at))
    -- The headers are JSON without spaces. Elsewhere in them these quotes would be escaped.
    local _, before = string.find(headers, '"dq-group":"', 1, true)
    local stop, char = before, nil
    while stop do
      stop, _, char = string.find(headers, '(["\\])', stop + 1)
      if char == '"' then
        return string.sub(headers, before + 1, stop - 1)
      end
      stop = stop and stop + 1
    end
  end

  -- The group in a record, escaped as there; nil if it has none, or if the record is missing or damaged.
  function groups.of(record)
    if not record or #record < RECORD_BYTES or string.byte(record, RECORD_BYTES) % 8 < 4 then
      return nil
    end
    local is_readable, group = pcall(read_group, record)
    return is_readable and group or nil
  end

  local function first_parked(group, count)
    return redis.call(
      'ZRANGE', key, '[p' .. group .. '\0', '(p' .. group .. '\1', 'BYLEX', 'LIMIT', 0, count)
  end

  local function entry_of(group, due, handle)
    return 'p' .. group .. '\0' .. struct.pack('>I8', due + MAX_TIME) .. handle .. shard
  end

  -- Marks a group if jobs of it are parked, since one may have room now. Returns whether that is so.
  local function mark(group)
    local has_line = #first_parked(group, 1) > 0
    if has_line then
      redis.call('ZADD', key, '0', 'm' .. group)
    end
    return has_line
  end

  local function marked(count)
    return redis.call('ZRANGE', key, '[m', '(n', 'BYLEX', 'LIMIT', 0, count)
  end

  function groups.has_marked()
    return #marked(1) > 0
  end

  -- Moves a waiting job to its group's line.
  function groups.park(group, due, handle)
    redis.call('ZREM', partition.due, handle)
    redis.call('ZADD', parked, string.format('%.0f', due), handle)
    redis.call('ZADD', key, '0', entry_of(group, due, handle))
  end

  -- Takes a job out of its group's line before it ends or moves. One that is not parked may leave a place
  -- for the line's first.
  function groups.leave(handle, record)
    local group, due = groups.of(record), redis.call('ZSCORE', parked, handle)
    if due then
      redis.call('ZREM', parked, handle)
      redis.call('ZREM', key, entry_of(group or '', tonumber(due), handle))
    elseif group then
      mark(group)
    end
  end

  -- Parks those of new entries of `due` (due time, handle, …) whose groups have a line: runners are not
  -- told of them. The mark lets one start that precedes others.
  function groups.join_lines(entries)
    for i = 1, redis.call('ZCARD', key) > 0 and #entries or 0, 2 do
      local due, handle = tonumber(entries[i]), entries[i + 1]
      local group = due <= now and groups.of(redis.call('HGET', partition.job, handle))
      if group and mark(group) then
        groups.park(group, due, handle)
      end
    end
  end

  -- The number of counted leases: of a group, or for '' of all.
  function groups.count(group)
    return tonumber(redis.call('HGET', flow, 'n' .. group) or 0) or 0
  end

  local function add_counts(by_group)
    local counts, removed = {}, {}
    for group, change in pairs(by_group) do
      local count = groups.count(group) + change
      if count > 0 then
        counts[#counts + 1], counts[#counts + 2] = 'n' .. group, string.format('%.0f', count)
      else
        removed[#removed + 1] = 'n' .. group
      end
    end
    send('HSET', flow, counts)
    send('HDEL', flow, removed)
  end

  -- Adds to the number of leases of a group, '' for a job without one, and of all.
  local function add(by_group, group, change)
    by_group[group] = (by_group[group] or 0) + change
    by_group[''] = (by_group[''] or 0) + (group == '' and 0 or change)
  end

  -- Counts leases that have begun, at most 100. `begun` is handle, record, handle, record, ….
  function groups.count_begun(begun)
    local fields, by_group = {}, {}
    for i = 1, #begun, 2 do
      local group = groups.of(begun[i + 1]) or ''
      fields[i], fields[i + 1] = 'h' .. begun[i] .. shard, group
      add(by_group, group, 1)
    end
    send('HSET', flow, fields)
    add_counts(by_group)
  end

  -- Counts leases that have ended, at most 100. Returns whether that makes room for a parked job.
  function groups.count_ended(handles)
    local fields, by_group, has_room = {}, {}, false
    for i, handle in ipairs(handles) do
      fields[i] = 'h' .. handle .. shard
    end
    for _, group in ipairs(#fields > 0 and redis.call('HMGET', flow, unpack(fields)) or {}) do
      if group then
        add(by_group, group, -1)
      end
    end
    send('HDEL', flow, fields)
    add_counts(by_group)
    for group in pairs(by_group) do
      has_room = group ~= '' and mark(group) or has_room
    end
    return has_room
  end

  -- Counts all leases anew, for a new limit, or after another program or an older version has ended some.
  -- `partitions` are all of the queue; none to count no more.
  function groups.recount(partitions)
    local stored, before = redis.call('HGETALL', flow), {}
    for i = 1, #stored, 2 do
      local kind, name = string.sub(stored[i], 1, 1), string.sub(stored[i], 2)
      if kind == 'n' then
        before[name] = tonumber(stored[i + 1]) or 0
      end
      if kind == 'n' or kind == 'h' then
        redis.call('HDEL', flow, stored[i])
      end
    end
    for _, counted in ipairs(partitions) do
      for _, handle in ipairs(redis.call('ZRANGE', counted.lease, 0, -1)) do
        open_groups(counted).count_begun({ handle, redis.call('HGET', counted.job, handle) or '' })
      end
    end
    for group, count in pairs(before) do
      if group ~= '' and groups.count(group) < count then
        mark(group)
      end
    end
  end

  local function return_entry(partitions, entry)
    local due = struct.unpack('>I8', entry, #entry - ENTRY_BYTES + 2) - MAX_TIME
    local handle, number = string.sub(entry, -HANDLE_BYTES - 2, -3), struct.unpack('>I2', entry, #entry - 1)
    local of = partitions[number + 1]
    redis.call('ZREM', key, entry)
    if of and redis.call('ZREM', of.parked, handle) == 1 then
      redis.call('ZADD', of.due, string.format('%.0f', due), handle)
    end
  end

  -- Returns the first parked jobs of marked groups, as many as may start. `max` is a group's limit.
  function groups.return_marked(partitions, max)
    local left = MAX_PARKED
    for _, entry in ipairs(marked(MAX_PARKED)) do
      local group = string.sub(entry, 2)
      local free = max - groups.count(group)
      local first = free > 0 and first_parked(group, math.min(free, left)) or {}
      for _, job in ipairs(first) do
        return_entry(partitions, job)
      end
      left = left - #first
      if left == 0 then
        return
      end
      redis.call('ZREM', key, entry)
    end
  end

  -- Returns the parked jobs after this entry, some in each call: the limit has changed. Those that are
  -- parked again meanwhile precede it.
  function groups.return_all(partitions, after, is_limited)
    local from = after == '' and '[p' or '(' .. after
    local entries = redis.call('ZRANGE', key, from, '(q', 'BYLEX', 'LIMIT', 0, MAX_PARKED)
    for _, entry in ipairs(entries) do
      return_entry(partitions, entry)
    end
    if #entries > 0 then
      redis.call('HSET', flow, 'returning', entries[#entries])
    else
      redis.call('HDEL', flow, 'returning')
      if not is_limited then
        redis.call('ZREMRANGEBYRANK', key, 0, -1)
      end
    end
  end

  return groups
end

-- The functions for a partition's groups; nil if its queue does not limit them.
local function groups_of(partition)
  return has_groups(partition) and open_groups(partition) or nil
end
