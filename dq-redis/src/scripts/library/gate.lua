-- The gate of a queue with limits: how many more of its jobs may start now, and who is told. The rules
-- are those of dq_core::machine, in gate.rs, limits.rs and line.rs there. Few queues have a gate, so
-- its functions are inside read_gate: a script then defines them for such a queue only.

-- Limits as text, see flow.rs: maximum number of running jobs, interval of the rate in microseconds,
-- its burst, the rate itself; then, if there is one, the limit of a group. All are empty if there is no
-- limit.
local UNLIMITED = ';;;'

-- The maximum number of running jobs of a group in limits; nil if there is none.
local function group_limit(limits)
  return tonumber(string.match(limits, ';(%d+)$') or '')
end

-- The queue's gate; nil if it never had one. Fails before anything is written if a key of it has
-- another type. Only claims (`is_claim`) look at the line of a queue that is not full and has no groups.
local function read_gate(partition, is_claim)
  if not partition.flow then
    return nil
  elseif partition.format == nil then
    partition.format = redis.call('HGET', partition.meta, 'format')
  end
  if not partition.format then
    return nil
  end
  local flow, line = partition.flow, partition.line
  local stored = redis.call(
    'HMGET', flow, 'declared', 'overriding', 'rate', 'closed_until', 'full_by', 'repair')
  local limits = stored[2] or stored[1] or UNLIMITED
  local max, interval, burst = string.match(limits, '^(%d*);(%d*);(%d*);[^;]*;?%d*$')
  -- tonumber('') is nil: no limit. What another program has written there stops the queue.
  max, interval, burst = tonumber(max or 0), tonumber(interval or ''), tonumber(burst or '')
  if interval and interval * (burst or 0) == 0 then
    max = 0
  end
  local rate, full_by = tonumber(stored[3] or 0) or 0, tonumber(stored[5] or 0) or 0
  local closed_until = tonumber(stored[4] or 0) or 0
  local group_max = group_limit(limits)
  local has_line = (is_claim or full_by > 0 or group_max) and redis.call('ZCARD', line) > 0
  local gate = {
    max = max, interval = interval, group_max = group_max, limits = limits, repair = stored[6],
    line = line, has_line = has_line, is_closed = closed_until > now,
  }
  if group_max or has_groups(partition) then
    gate.has_parked = redis.call('ZCARD', partition.groups) > 0
  end

  -- Until when the rate is used, in microseconds: between now and a whole burst after it, also after
  -- the clock was set back or the rate was changed.
  local function used_until()
    return math.max(now * 1000, math.min(rate, now * 1000 + interval * burst))
  end

  -- Counts jobs that start.
  function gate.start(jobs)
    if interval then
      rate = used_until() + interval * jobs
      redis.call('HSET', flow, 'rate', string.format('%.0f', rate))
    end
  end

  -- How many jobs may start now, beside those that run. If none may, also from when on one may; nil
  -- if a running one must end before.
  function gate.room(running)
    local free = max and max - running or math.huge
    if free <= 0 then
      return 0
    elseif closed_until > now then
      return 0, closed_until
    elseif not interval then
      return free
    end
    -- What is left of a burst, in microseconds.
    local left = now * 1000 + interval * burst - used_until()
    if left < interval then
      return 0, math.ceil((now * 1000 + interval - left) / 1000)
    end
    return math.min(free, math.floor(left / interval))
  end

  -- Remembers how many leases must end before a full queue has room. Only wake-ups depend on it and on
  -- the line, so a script goes on if the server refuses to write them.
  function gate.remember_running(running)
    local before = full_by
    full_by = max and math.max(0, running - max + 1) or 0
    if full_by ~= before then
      redis.pcall('HSET', flow, 'full_by', full_by)
    end
  end

  function gate.remove_from_line(names)
    for _, name in ipairs(names) do
      redis.pcall('ZREM', line, 'j' .. name, 's' .. name)
    end
  end

  -- Tells the claimer that has waited longest in the line that a job may start at `due`. If none
  -- waits, tells all that one may when it is due (`otherwise`), or nobody if that is nil.
  function gate.call_next(due, otherwise)
    local first = has_line and redis.call('ZRANGEBYSCORE', line, '0', '+inf', 'LIMIT', '0', '1')[1]
    local name = first and string.sub(first, 2)
    due = name and due or otherwise and math.max(due, otherwise)
    if due then
      gate.remove_from_line(name and { name } or {})
      look_at(partition, due)
      -- The channel's name is that of the line, without the shard.
      local channel = string.gsub(line, '^({[^#}]*)[^}]*}:line:', '%1}:wake:')
      local time = string.format('%.0f', due)
      redis.call('PUBLISH', channel, name and time .. ' ' .. name or time)
    end
  end

  -- Calls a claimer if the queue or a group was full before these leases ended, and is not any more.
  function gate.offer_room(handles)
    local was_full, groups = full_by > 0, group_max and open_groups(partition)
    local has_room = groups and groups.count_ended(handles)
    if was_full then
      gate.remember_running((max or 0) + full_by - 1 - #handles)
    end
    if full_by == 0 and (was_full or has_room) then
      -- Of other shards only claims know whether jobs are due.
      local is_shard = string.find(partition.due, '^{[^}]*#')
      local _, opens_at = gate.room(0)
      has_room = has_room or is_shard or groups and groups.has_marked()
      gate.call_next(opens_at or now, has_room and now or earliest(partition.due))
    end
  end

  return gate
end

-- Makes claims look at the gate. While there are limits, refuses versions that would ignore them; while
-- jobs may be parked, those that would not find them. `limits` is the text of those in force.
local function mark_gate(partition, limits)
  local format, write, read =
    string.match(redis.call('HGET', partition.meta, 'format') or '', '^(%d+)/(%d+)/(%d+)$')
  format, write, read = tonumber(format or 1), tonumber(write or 1), tonumber(read or 1)
  if format <= OWN_FORMAT then
    -- Only limits have raised these.
    write, read = 1, 1
  end
  if group_limit(limits) or redis.call('HGET', partition.flow, 'repair') then
    write, read = math.max(write, GROUPS_FORMAT), math.max(read, GROUPS_FORMAT)
  elseif limits ~= UNLIMITED then
    write = math.max(write, 2)
  end
  partition.format = string.format('%d/%d/%d', math.max(format, write, 2), write, read)
  redis.call('HSET', partition.meta, 'format', partition.format)
  -- See forget_gate.
  redis.call('PERSIST', partition.flow)
end

-- Lets no job start before this time.
local function close_until(partition, time)
  local stored = redis.call('HMGET', partition.flow, 'declared', 'overriding', 'closed_until')
  mark_gate(partition, stored[2] or stored[1] or UNLIMITED)
  local latest = math.max(time, tonumber(stored[3] or 0) or 0)
  redis.call('HSET', partition.flow, 'closed_until', string.format('%.0f', latest))
end

-- How long a removal of limits is remembered after its queue was empty, in milliseconds: so long a process
-- that has declared them before must not bring them back when it connects again.
local REMEMBER_REMOVAL = 30 * 24 * 3600 * 1000

-- Deletes the gate of an empty queue that has had limits, and has none any more, not even as an override.
local function forget_gate(partition)
  local gate = read_gate(partition)
  local is_kept = not gate or gate.limits ~= UNLIMITED or gate.is_closed or gate.repair
  if is_kept or redis.call('HGET', partition.flow, 'overriding') then
    return
  end
  redis.call('HDEL', partition.flow, 'rate', 'closed_until', 'full_by')
  redis.call('PEXPIRE', partition.flow, string.format('%.0f', REMEMBER_REMOVAL))
  redis.call('ZREMRANGEBYRANK', partition.line, 0, -1)
  if partition.format == '2/1/1' or partition.format == '3/1/1' then
    redis.call('HDEL', partition.meta, 'format')
  end
end
