-- Sorted sets: due times, scores, and entries that are no jobs.

-- A due time as the text of a score. Clients send a time, or '+' and a delay in milliseconds. The
-- last delay is cached, since the jobs of one call often have the same one.
local PLUS = string.byte('+')
local last_delay, last_due
local function resolve_due(text)
  if string.byte(text) ~= PLUS then
    return text
  end
  if text ~= last_delay then
    last_delay, last_due = text, string.format('%.0f', now + tonumber(text))
  end
  return last_due
end

-- A score as a time, rounded down and limited to MAX_TIME. Other programs may have written any score.
local function score_time(score)
  local time = tonumber(score)
  if time > MAX_TIME or time < -MAX_TIME or time % 1 ~= 0 then
    time = math.max(-MAX_TIME, math.min(MAX_TIME, math.floor(time)))
  end
  return time
end

-- The lowest score of a sorted set; nil if the set is empty.
local function earliest(zset)
  local score = redis.call('ZRANGE', zset, '0', '0', 'WITHSCORES')[2]
  return score and score_time(score)
end

-- The number of jobs that are due from one time until before another. A layout with waiting jobs in
-- other keys replaces this function and the next.
local function count_due(partition, from, to)
  local count = redis.call('ZCOUNT', partition.due, from, '(' .. to)
  if has_groups(partition) then
    count = count + redis.call('ZCOUNT', partition.parked, from, '(' .. to)
  end
  return count
end

-- The number of ready jobs and of waiting ones, and the first due time or nil.
local function count_waiting(partition)
  local ready, waiting, first_due = redis.call('ZCOUNT', partition.due, '-inf', now),
    redis.call('ZCARD', partition.due), earliest(partition.due)
  if has_groups(partition) then
    ready = ready + redis.call('ZCOUNT', partition.parked, '-inf', now)
    waiting = waiting + redis.call('ZCARD', partition.parked)
    local first_parked_due = earliest(partition.parked)
    first_due = first_due and first_parked_due and math.min(first_due, first_parked_due)
      or first_due or first_parked_due
  end
  return ready, waiting, first_due
end

-- The score of the first entry of a sorted set if it is one of these entries (score, member, score,
-- member, …), which have just been added; else nil.
local function first_of(zset, entries)
  if #entries == 0 then
    return nil
  end
  local first = redis.call('ZRANGE', zset, '0', '0')[1]
  -- The loop begins at the end: if a member was added twice, the last score counts.
  for i = #entries, 2, -2 do
    if entries[i] == first then
      return entries[i - 1]
    end
  end
  return nil
end

-- Makes claims look at the partition at this time, or earlier. The call has taken effect before, so a
-- key of another type must not make it fail.
local function look_at(partition, time)
  if QUEUE_INDEX then
    redis.pcall('ZADD', QUEUE_INDEX, 'LT', time, partition.due)
  end
end

-- Publishes the first due time if its job is one of these entries (due time, handle, …), which have
-- just been added: runners that wait for a later time wake up. A layout with waiting jobs in other
-- keys replaces this function.
local function publish_if_first(channel, partition, entries)
  local groups = groups_of(partition)
  if groups then
    groups.join_lines(entries)
  end
  local first = first_of(partition.due, entries)
  if first then
    look_at(partition, first)
    redis.call('PUBLISH', channel, first)
  end
end

-- Moves an entry that is no job from `due`, if it is there, to the quarantine. Callers remove it
-- from `lease` or `dead`.
local function quarantine(partition, member, score)
  -- ZCARD fails before anything is written if the key has another type. ZREM precedes ZADD: on a
  -- server out of memory a script may continue once it has run a write that takes none.
  redis.call('ZCARD', partition.quarantine)
  redis.call('ZREM', partition.due, member)
  if has_groups(partition) then
    redis.call('ZREM', partition.parked, member)
    -- Its group is unknown, and it may have had the place of a parked job.
    redis.pcall('HSET', partition.flow, 'repair', 'c')
  end
  redis.call('ZADD', partition.quarantine, score, member)
end

-- Rounds the score of an entry to a whole number and limits it to MAX_TIME, since the cursors of
-- listings are integers of 64 bits. It rounds up, so that a listing in ascending order that is under
-- way does not skip the entry. Returns the new score, or nil if the old one was such a number.
local function round_score(zset, member, score)
  local old = tonumber(score)
  if old % 1 == 0 and old <= MAX_TIME and old >= -MAX_TIME then
    return nil
  end
  local rounded = -score_time(-old)
  local members = { member }
  if old > MAX_TIME then
    -- All entries beyond the limit get the same score, and so the order of their names. Up to 1000 of
    -- them change together, so that a listing that is under way skips none.
    local beyond = string.format('(%.0f', MAX_TIME)
    members = redis.call('ZRANGEBYSCORE', zset, beyond, '+inf', 'LIMIT', '0', '1000')
  end
  for _, entry in ipairs(members) do
    redis.call('ZREM', zset, entry)
    redis.call('ZADD', zset, string.format('%.0f', rounded), entry)
  end
  return rounded
end
