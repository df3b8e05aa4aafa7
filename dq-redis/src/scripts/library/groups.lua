-- Groups: how many jobs of each run, and which due jobs wait for room there, the *parked* ones. The rule is
-- that of dq_core::machine, in groups.rs there, except that a script does not return parked jobs when there
-- is room, since they may be in another shard: it marks the group, and the next claim returns the first ones.

-- Maximum number of jobs that a claim parks, as in dq_core::machine, and that it returns.
local MAX_PARKED = 1000

-- With this an entry of a parked job begins: see keys.lua.
local PARKED_ENTRY = string.byte('p')

local QUOTE = string.byte('"')

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

  local byte, find, match, substring = string.byte, string.find, string.match, string.sub

  -- The group in a record, escaped as there; nil if it has none, or if the record is missing or damaged.
  function groups.of(record)
    local flags, at = record and byte(record, RECORD_BYTES) or 0, RECORD_BYTES + 1
    if flags % 8 < 4 then
      return nil
    end
    if flags % 2 == 1 then
      at = at + 1 + (byte(record, at) or 0)
    end
    if flags % 4 >= 2 then
      at = at + 4
    end
    -- Most jobs have no header before it, and a name without escapes.
    local first = match(record, '^{"dq%-group":"([^"\\]*)"', at + 4)
    if first or #record < at + 3 then
      return first
    end
    local headers = substring(record, at + 4, at + 3 + struct.unpack('>I4', record, at))
    -- The headers are JSON without spaces. Elsewhere in them these quotes would be escaped.
    local _, before = find(headers, '"dq-group":"', 1, true)
    local stop = before and find(headers, '["\\]', before + 1)
    while stop and byte(headers, stop) ~= QUOTE do
      stop = find(headers, '["\\]', stop + 2)
    end
    return stop and substring(headers, before + 1, stop - 1)
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

  -- Takes a job out of its group's line before it ends or moves. One that is not parked may leave room
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

  -- Parks due jobs among new entries of `due` (due time, handle, …) whose groups have a line: runners are
  -- not told of them. The mark lets one start that precedes others.
  function groups.join_lines(entries)
    for i = 1, redis.call('ZCARD', key) > 0 and #entries or 0, 2 do
      -- The call may have moved the job again.
      local handle = entries[i + 1]
      local due = tonumber(redis.call('ZSCORE', partition.due, handle) or math.huge)
      local group = due <= now and groups.of(redis.call('HGET', partition.job, handle))
      if group and mark(group) then
        groups.park(group, due, handle)
      end
    end
  end

  -- Whether a parked job is in its group's line.
  function groups.is_in_line(handle, record, due)
    local group = groups.of(record)
    return group and redis.call('ZSCORE', key, entry_of(group, tonumber(due), handle))
  end

  -- The groups of some records, '' for none, and how many leases of each are counted, as stored.
  function groups.of_all(records)
    local names, fields, of = {}, {}, groups.of
    for i = 1, #records do
      local name = of(records[i]) or ''
      names[i], fields[i] = name, 'n' .. name
    end
    return names, redis.call('HMGET', flow, unpack(fields))
  end

  -- How many leases of a group are counted, and for '' of all.
  function groups.count(group)
    return tonumber(redis.call('HGET', flow, 'n' .. group) or 0) or 0
  end

  -- Counts leases that have begun, at most 100: `begun` is handle, group or '', handle, …; a handle is false if
  -- the lease has not begun. `counts` has the counts of their groups and of all, with these leases.
  function groups.count_begun(begun, counts)
    -- Most counts of a call are equal, and formatting is slow.
    local fields, n, removed, texts = {}, 0, {}, {}
    for i = 1, #begun, 2 do
      local handle, group = begun[i], begun[i + 1]
      local count = counts[group]
      if handle then
        fields[n + 1], fields[n + 2] = 'h' .. handle .. shard, group
        n = n + 2
      end
      if group ~= '' and count > 0 then
        texts[count] = texts[count] or string.format('%d', count)
        fields[n + 1], fields[n + 2] = 'n' .. group, texts[count]
        n = n + 2
      elseif group ~= '' then
        removed[#removed + 1] = 'n' .. group
      end
    end
    if n > 0 then
      fields[n + 1], fields[n + 2] = 'n', string.format('%d', counts[''])
      redis.call('HSET', flow, unpack(fields))
    end
    send('HDEL', flow, removed)
  end

  -- Counts those leases that are not counted yet, at most 100.
  function groups.count_uncounted(handles, records)
    local fields, begun, counts = {}, {}, { [''] = groups.count('') }
    for i, handle in ipairs(handles) do
      fields[i] = 'h' .. handle .. shard
    end
    local names, stored = groups.of_all(records)
    for i, counted in ipairs(redis.call('HMGET', flow, unpack(fields))) do
      if not counted then
        local name = names[i]
        begun[#begun + 1], begun[#begun + 2] = handles[i], name
        counts[''] = counts[''] + 1
        counts[name] = name ~= '' and (counts[name] or tonumber(stored[i] or 0) or 0) + 1 or counts[name]
      end
    end
    groups.count_begun(begun, counts)
  end

  -- Counts leases that have ended, at most 100. Returns whether that makes room for a parked job.
  function groups.count_ended(handles)
    if #handles == 0 then
      return false
    end
    local removed, has_room = {}, false
    for i = 1, #handles do
      removed[i] = 'h' .. handles[i] .. shard
    end
    -- All leases, and then the groups of those that are counted; and how many leases of each have ended.
    local names, fields, ended, known, counted = { '' }, { 'n' }, {}, 1, 0
    local found = redis.call('HMGET', flow, unpack(removed))
    for i = 1, #handles do
      local group = found[i]
      local before = group and ended[group]
      if before then
        ended[group] = before + 1
      elseif group and group ~= '' then
        known = known + 1
        names[known], fields[known], ended[group] = group, 'n' .. group, 1
      end
      counted = counted + (group and 1 or 0)
    end
    ended[''] = counted
    local counts, stored, last = redis.call('HMGET', flow, unpack(fields)), {}, #handles
    for i = 1, known do
      local count = (tonumber(counts[i] or 0) or 0) - ended[names[i]]
      if count > 0 then
        stored[#stored + 1], stored[#stored + 2] = fields[i], string.format('%d', count)
      else
        last = last + 1
        removed[last] = fields[i]
      end
    end
    redis.call('HDEL', flow, unpack(removed))
    send('HSET', flow, stored)
    local has_parked = redis.call('ZCARD', key) > 0
    for i = 2, has_parked and known or 0 do
      has_room = mark(names[i]) or has_room
    end
    -- Another program may have removed all lines: the next claim repairs that.
    return has_room or not has_parked and redis.call('ZCARD', parked) > 0
  end

  -- Removes an entry of `groups`. Puts its job, if it is parked, back into `due`; also if `parked` was lost,
  -- and the job is nowhere else.
  function groups.return_entry(partitions, entry)
    redis.call('ZREM', key, entry)
    if byte(entry) ~= PARKED_ENTRY then
      return
    end
    local due = struct.unpack('>I8', entry, #entry - ENTRY_BYTES + 2) - MAX_TIME
    local handle, number = substring(entry, -HANDLE_BYTES - 2, -3), struct.unpack('>I2', entry, #entry - 1)
    local of = partitions[number + 1]
    local function is_lost()
      return redis.call('HSTRLEN', of.job, handle) > 0 and not redis.call('ZSCORE', of.due, handle)
        and not redis.call('ZSCORE', of.lease, handle) and not redis.call('ZSCORE', of.dead, handle)
    end
    if of and (redis.call('ZREM', of.parked, handle) == 1 or is_lost()) then
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
        groups.return_entry(partitions, job)
      end
      left = left - #first
      if left == 0 then
        return
      end
      redis.call('ZREM', key, entry)
    end
  end

  return groups
end

-- The functions for a partition's groups; nil if its queue does not limit them.
local function groups_of(partition)
  return has_groups(partition) and open_groups(partition) or nil
end
