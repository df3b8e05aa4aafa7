-- Repairs groups for a new limit, and after another program or an older version has removed entries or whole
-- keys: counts the leases anew, and returns all parked jobs to `due`, where claims park them again.
--
-- A call makes a part of it; `repair` in `flow` says how far it is, by a *stage* and a *cursor*. A stage takes
-- the queue's partitions, the cursor ('' at first), how many entries and bytes of records are `left` to visit,
-- and the limit of a group, nil for none. It returns the next cursor; nil when it is done.

-- Maximum number of entries that a claim visits, and of bytes in records.
local MAX_REPAIRED, MAX_REPAIRED_BYTES = 1000, 1024 * 1024

local function sum_of(partitions, name)
  local sum = 0
  for _, partition in ipairs(partitions) do
    sum = sum + redis.call('ZCARD', partition[name])
  end
  return sum
end

local function count_lines(partitions)
  return redis.call('ZLEXCOUNT', partitions[1].groups, '[p', '(q')
end

-- Calls visit(partition, handles, records, scores) for entries of a sorted set in all partitions. It returns
-- how many of them it has removed.
local function walk(partitions, name, cursor, left, visit)
  local number, score, last = string.match(cursor, '^(%d+) (%S+) (.*)$')
  for i = tonumber(number or 1), #partitions do
    local partition = partitions[i]
    local rank, found = score and rank_after(partition[name], score, last) or 0, nil
    score = nil
    repeat
      if left.entries <= 0 or left.bytes <= 0 then
        return cursor
      end
      local count = math.min(left.entries, partition.large and 8 or 100)
      found = redis.call('ZRANGE', partition[name], rank, rank + count - 1, 'WITHSCORES')
      local handles, scores = {}, {}
      for n = 1, #found / 2 do
        handles[n], scores[n] = found[2 * n - 1], found[2 * n]
      end
      if #found > 0 then
        local records = redis.call('HMGET', partition.job, unpack(handles))
        for n = 1, #handles do
          left.bytes = left.bytes - #(records[n] or '')
        end
        left.entries = left.entries - #handles
        cursor = string.format('%d %s ', i, scores[#scores]) .. handles[#handles]
        rank = rank + #handles - visit(partition, handles, records, scores)
      end
    until #found == 0
  end
end

local function clear_counts(partitions, cursor, left)
  local flow, names = partitions[1].flow, {}
  local found = redis.call('HSCAN', flow, cursor == '' and '0' or cursor, 'COUNT', left.entries)
  for i = 1, #found[2], 2 do
    -- Other fields begin with other letters.
    if string.find(found[2][i], '^[hn]') then
      names[#names + 1] = found[2][i]
    end
  end
  send('HDEL', flow, names)
  left.entries = left.entries - #found[2] / 2
  return found[1] ~= '0' and found[1] or nil
end

-- No lease begins meanwhile.
local function count_leases(partitions, cursor, left, max)
  if not max then
    return nil
  elseif cursor == '' then
    -- A small hash is scanned for each field: this converts it to a table for good. See add_leases.
    local flow, long = partitions[1].flow, string.rep('-', 65)
    redis.call('HSET', flow, long, '')
    redis.call('HDEL', flow, long)
  end
  return walk(partitions, 'lease', cursor, left, function(partition, handles, records)
    open_groups(partition).count_uncounted(handles, records)
    return 0
  end)
end

-- Returns the jobs in lines. Those that are parked again meanwhile precede the cursor.
local function return_lines(partitions, cursor, left, max)
  local from = cursor ~= '' and '(' .. cursor or max and '[p' or '-'
  local entries = redis.call(
    'ZRANGE', partitions[1].groups, from, '(q', 'BYLEX', 'LIMIT', 0, left.entries)
  for _, entry in ipairs(entries) do
    open_groups(partitions[1]).return_entry(partitions, entry)
  end
  left.entries = left.entries - #entries
  return left.entries <= 0 and entries[#entries] or nil
end

-- Returns the parked jobs that are in no line.
local function return_lost(partitions, cursor, left)
  if cursor == '' and sum_of(partitions, 'parked') <= count_lines(partitions) then
    return nil
  end
  return walk(partitions, 'parked', cursor, left, function(partition, handles, records, dues)
    local returned = 0
    for i, handle in ipairs(handles) do
      if not open_groups(partition).is_in_line(handle, records[i], dues[i]) then
        redis.call('ZREM', partition.parked, handle)
        redis.call('ZADD', partition.due, dues[i], handle)
        returned = returned + 1
      end
    end
    return returned
  end)
end

local STAGES = { c = clear_counts, n = count_leases, l = return_lines, o = return_lost }
local NEXT_STAGE = { c = 'n', n = 'l', l = 'o' }

-- The stage with which a repair has to begin; nil if everything is in order. So many leases are `counted`, and
-- `running` is their number.
local function damaged_stage(partitions, counted, running)
  return counted ~= running and 'c'
    or count_lines(partitions) ~= sum_of(partitions, 'parked') and 'l' or nil
end

-- Goes on with a repair. `state` is a stage and its cursor. Returns the stage that is not done yet; nil at
-- the end.
local function repair_groups(partitions, state, max)
  local stage, cursor = string.sub(state, 1, 1), string.sub(state, 2)
  local left = { entries = MAX_REPAIRED, bytes = MAX_REPAIRED_BYTES }
  stage = STAGES[stage] and stage or 'c'
  while stage and left.entries > 0 and left.bytes > 0 do
    cursor = STAGES[stage](partitions, cursor, left, max)
    stage, cursor = cursor and stage or NEXT_STAGE[stage], cursor or ''
  end
  if stage then
    redis.call('HSET', partitions[1].flow, 'repair', stage .. cursor)
  else
    redis.call('HDEL', partitions[1].flow, 'repair')
  end
  return stage
end
