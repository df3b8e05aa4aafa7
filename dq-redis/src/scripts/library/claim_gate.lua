-- Claims from a queue with limits, and the line of the claimers that wait for room in one.

-- Fails if a key for groups has another type, before the claim writes any.
local function check_groups(partition)
  redis.call('ZCARD', partition.due)
  redis.call('HSTRLEN', partition.job, '')
  redis.call('ZCARD', partition.dead)
  redis.call('ZCARD', partition.groups)
  redis.call('ZCARD', partition.parked)
end

-- Counts leases that have ended, and returns parked jobs that may have room. `running` is the number of
-- leases. Returns whether jobs may start, since all leases are counted; whether nothing is left to repair; and
-- how many leases are counted.
local function return_parked(partitions, gate, running)
  local max = gate.group_max
  for _, partition in ipairs(max and partitions or {}) do
    open_groups(partition).count_ended(partition.expired or {})
    if not has_groups(partition) then
      -- Another program has removed the mark.
      mark_gate(partition, gate.limits)
    end
  end
  local groups = open_groups(partitions[1])
  local counted = groups.count('')
  -- A server that has lost the limit has lost `repair`, too.
  local repair = gate.repair or max and damaged_stage(partitions, counted, running) or not max and 'c'
  local stage = repair and repair_groups(partitions, repair, max)
  counted = repair and groups.count('') or counted
  local is_counted = stage ~= 'c' and stage ~= 'n' and counted == running
  if max and is_counted and gate.has_parked then
    groups.return_marked(partitions, max)
  elseif not max then
    is_counted = true
    for _, partition in ipairs(partitions) do
      mark_gate(partition, gate.limits)
    end
  end
  return is_counted, is_counted and not stage, counted
end

-- The gate of a queue with these partitions, for a claim; nil for most queues. Its functions are inside,
-- as those of read_gate. A queue whose jobs are counted or parked is refused as a whole if a partition is.
local function open_gate(partitions, is_peek)
  local gate, may_park, refusal
  for _, partition in ipairs(partitions) do
    gate = gate or partition.flow and partition.format and catch_wrong_type(read_gate, partition, true)
    may_park = may_park or has_groups(partition) or gate and gate.group_max
  end
  for _, partition in ipairs(partitions) do
    if gate and may_park then
      catch_wrong_type(check_groups, partition)
    end
    refusal = refusal or partition.refusal
  end
  if gate and refusal and (gate.max or may_park) then
    for _, partition in ipairs(partitions) do
      partition.refusal = partition.refusal or refusal
    end
    return nil
  elseif not gate then
    return nil
  end
  local running, claimer, line = 0, ARGV[3], gate.line
  for _, partition in ipairs(partitions) do
    running = running + (partition.refusal and 0 or redis.call('ZCARD', partition.lease))
  end
  -- How many leases are counted of the groups of admitted jobs, with these; and for '' of all.
  local counts, is_counted, is_repaired = {}, true, true
  if may_park then
    is_counted, is_repaired, counts[''] = return_parked(partitions, gate, running)
  end
  -- Subtracted from when a claimer was last seen, so that this is less than any time of joining.
  local LONG_AGO = 2 ^ 52
  -- A claimer that has not been seen for this many milliseconds has ended: the longest sweep interval
  -- is a minute.
  local MAX_AGE = 65000

  local function names(first, last)
    local found = {}
    for i, entry in ipairs(redis.call('ZRANGEBYSCORE', line, first, last)) do
      found[i] = string.sub(entry, 2)
    end
    return found
  end

  -- The claimer's position in the line, from 0. If it is not there, it joins if `may_join`; else nil.
  local function join_or_renew(may_join)
    gate.remove_from_line(names('-inf', string.format('%.0f', now - MAX_AGE - LONG_AGO)))
    local joined = redis.call('ZSCORE', line, 'j' .. claimer)
    if not joined and may_join then
      joined = string.format('%.0f', now_micros)
      redis.pcall('ZADD', line, joined, 'j' .. claimer)
    end
    if joined then
      redis.pcall('ZADD', line, string.format('%.0f', now - LONG_AGO), 's' .. claimer)
      return redis.call('ZCOUNT', line, '0', '(' .. joined)
    end
  end

  -- Takes out a claimer that has got jobs. In a queue with a rate, those before it leave too: they
  -- did not come at their turns, and may have ended.
  local function leave_line()
    local joined = gate.has_line and redis.call('ZSCORE', line, 'j' .. claimer)
    if joined then
      gate.remove_from_line(gate.interval and names('0', joined) or { claimer })
    end
  end

  local function finite(time)
    return time < math.huge and time
  end

  -- How many jobs a claim gets that wants `max` jobs, of which `starting` start at once.
  function gate.allowed(max, starting)
    local free = is_counted and gate.room(running) or 0
    return math.floor(free / 2) >= max and max or math.min(free, starting)
  end

  -- Finds the first due jobs that may start, at most `max`, and parks those before them whose groups are
  -- full. Beyond `starting`, ends at the first job with which its group would use more than half of its limit.
  -- Returns the count per partition; these jobs are then its first due ones. A partition gets what the next
  -- steps need of them: `admitted` is handle, due time, handle, …; `begun` is handle, group or '', handle, …;
  -- and `records` are theirs, unless some may be large.
  function gate.admit(max, starting)
    local share, parked, admitted = {}, 0, 0
    -- By partition, what was read last: handle, due time, handle, …; records; groups and their counts; and the
    -- position of the first job that has not been looked at.
    local lists = {}
    local function read_more(i)
      local partition, handles = partitions[i], {}
      local limit = partition.large and 8 or parked > 0 and 100 or math.min(100, max - admitted)
      local found = redis.call(
        'ZRANGEBYSCORE', partition.due, '-inf', now_text, 'WITHSCORES', 'LIMIT', share[i], limit)
      local list = { entries = found, at = 1, size = #found / 2 }
      lists[i] = list
      if list.size > 0 then
        for n = 1, list.size do
          handles[n] = found[2 * n - 1]
        end
        list.records = redis.call('HMGET', partition.job, unpack(handles))
        list.groups, list.counts = open_groups(partition).of_all(list.records)
      end
    end
    -- The partition with the first entry that has not been looked at.
    local function first_partition()
      local first, first_due, first_handle
      for i, list in pairs(lists) do
        if list.size > 0 and list.at > list.size then
          read_more(i)
          list = lists[i]
        end
        local handle, due = list.entries[2 * list.at - 1], tonumber(list.entries[2 * list.at])
        if handle and (not first or due < first_due or due == first_due and precedes(handle, first_handle)) then
          first, first_due, first_handle = i, due, handle
        end
      end
      return first
    end
    for i, partition in ipairs(partitions) do
      share[i], partition.admitted, partition.begun = 0, {}, {}
      partition.records = not partition.large and {} or nil
      if max > 0 and not partition.paused then
        read_more(i)
      end
    end
    local group_max, i, list = gate.group_max, nil, nil
    while admitted < max and parked < MAX_PARKED do
      if not list or #partitions > 1 or list.at > list.size then
        i = first_partition()
        list = i and lists[i]
      end
      if not list then
        break
      end
      local partition, n, at = partitions[i], share[i], list.at
      local handle, due, group = list.entries[2 * at - 1], list.entries[2 * at], list.groups[at]
      local count = group ~= '' and (counts[group] or tonumber(list.counts[at] or 0) or 0)
      list.at = at + 1
      if count and count >= group_max then
        open_groups(partition).park(group, score_time(due), handle)
        parked = parked + 1
      elseif count and admitted >= starting and 2 * (count + 1) > group_max then
        break
      else
        local taken, begun, kept = partition.admitted, partition.begun, partition.records
        if count then
          counts[group] = count + 1
        end
        taken[2 * n + 1], taken[2 * n + 2] = handle, due
        begun[2 * n + 1], begun[2 * n + 2] = handle, group
        if kept then
          kept[n + 1] = list.records[at]
        end
        share[i], admitted = n + 1, admitted + 1
      end
    end
    gate.has_parked = gate.has_parked or parked > 0
    return share
  end

  -- Counts the leases in the partitions' replies, once it is known which admitted jobs have none: some are no
  -- job, have no room in the reply, or are in a partition that is refused.
  function gate.count_begun()
    for _, partition in ipairs(partitions) do
      local begun, reply, next_at = partition.begun, partition.reply or {}, 4
      for i = 1, #begun, 2 do
        local group = begun[i + 1]
        if reply[next_at] == begun[i] then
          next_at = next_at + 4
          counts[''] = counts[''] + 1
        else
          begun[i] = false
          counts[group] = group ~= '' and counts[group] - 1 or counts[group]
        end
      end
    end
    for _, partition in ipairs(partitions) do
      open_groups(partition).count_begun(partition.begun, counts)
    end
  end

  -- Counts jobs that the claim has started. If no more may start, sets when it has to come again
  -- (`next`) and when others have to look at a partition (`look_at`). A claimer that `wants_more` and
  -- finds no room for a due job joins the line.
  function gate.pass(started, wants_more)
    if started > 0 then
      gate.start(started)
      leave_line()
    end
    running = running + started
    gate.remember_running(running)
    local free, opens_at = gate.room(running)
    if not is_repaired then
      for _, partition in ipairs(partitions) do
        partition.next, partition.look_at = now, now
      end
      return
    end
    local has_parked = gate.has_parked and redis.call('ZCARD', partitions[1].groups) > 0
    if free > 0 and not gate.has_line and not has_parked then
      return
    end
    local dues, next_due = {}, math.huge
    for i, partition in ipairs(partitions) do
      if not partition.refusal and not partition.paused then
        dues[i] = earliest(partition.due) or math.huge
        next_due = math.min(next_due, dues[i])
      end
    end
    local is_due = next_due <= now
    if free > 0 then
      if has_parked and not is_peek then
        -- It found no room in the group of a due job.
        join_or_renew(wants_more)
      end
      if is_due and not is_peek then
        gate.call_next(now)
      end
      return
    end
    local position = join_or_renew(wants_more and (is_due or has_parked)) or 0
    for i, partition in ipairs(partitions) do
      if dues[i] and not partition.has_more_expired then
        local lease_end = earliest(partition.lease) or math.huge
        -- Only the end of a running job makes room in a full queue.
        local due = not opens_at and is_due and math.huge or math.max(dues[i], opens_at or 0)
        -- At a rate each claimer has its own turn.
        local turn = opens_at and math.ceil(opens_at + position * (gate.interval or 0) / 1000) or 0
        partition.next = finite(math.min(math.max(due, turn), lease_end))
        partition.look_at = finite(math.min(due, lease_end))
      end
    end
  end

  return gate
end
