-- Claims from a queue with limits, and the line of the claimers that wait for room in one.

-- The gate of a queue with these partitions, for a claim; nil for most queues. Its functions are inside,
-- as those of read_gate.
local function open_gate(partitions, is_peek)
  local gate
  for _, partition in ipairs(partitions) do
    gate = gate or partition.flow and partition.format and catch_wrong_type(read_gate, partition, true)
  end
  if not gate then
    return nil
  end
  local running, claimer, line = 0, ARGV[3], gate.line
  for _, partition in ipairs(partitions) do
    -- A partition that cannot be served may hold any number of leases.
    running = running + (partition.refusal and math.huge or redis.call('ZCARD', partition.lease))
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
    local free = gate.room(running)
    -- A queue that is only throttled has no limit: jobs may wait in the runner.
    return math.min(free, max, (gate.max or gate.interval) and starting or max)
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
    gate.note_running(running)
    local free, opens_at = gate.room(running)
    if free > 0 and not gate.has_line then
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
      if is_due and not is_peek then
        gate.call_next(now)
      end
      return
    end
    local position = join_or_renew(wants_more and is_due) or 0
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
