-- Parts of listings.

-- The sorted set with the jobs in this state, a letter as in browse.lua.
local function zset_of(partition, state)
  return ({
    s = partition.due, r = partition.due, l = partition.lease, d = partition.dead,
    e = partition.ended,
  })[state]
end

-- The ranks of the entries to list: at least the first, and less than the second. `at` and `member` are
-- time and member of the last entry of the previous page; nil for the first page. For state 'e' the
-- script has called read_history_limit.
local function listed_ranks(zset, state, is_descending, at, member)
  local first, stop = 0, redis.call('ZCARD', zset)
  if state == 's' then
    first = redis.call('ZCOUNT', zset, '-inf', now_text)
  elseif state == 'r' then
    stop = redis.call('ZCOUNT', zset, '-inf', now_text)
  elseif state == 'e' then
    first = math.min(stop, math.max(0, count_forgotten(zset)))
  end
  if at and is_descending then
    stop = math.min(stop, rank_from(zset, at, member))
  elseif at then
    first = math.max(first, rank_after(zset, at, member))
  end
  return first, stop
end

-- At most `limit` entries with these ranks, in the order of the listing: member, score, …
local function entries_at(zset, first, stop, limit, is_descending)
  if first >= stop then
    return {}
  elseif not is_descending then
    return redis.call('ZRANGE', zset, first, math.min(stop, first + limit) - 1, 'WITHSCORES')
  end
  local entries =
    redis.call('ZRANGE', zset, math.max(first, stop - limit), stop - 1, 'WITHSCORES')
  local reversed = {}
  for i = #entries - 1, 1, -2 do
    reversed[#reversed + 1], reversed[#reversed + 2] = entries[i], entries[i + 1]
  end
  return reversed
end

-- A record without its payload; as it is if it cannot be read.
local function without_payload(record)
  local is_readable, length = pcall(prefix_length, string.sub(record, 7))
  return is_readable and string.sub(record, 1, 6 + length) or record
end

-- Adds a job with a handle to the reply of a listing. For one that has ended, `record` is the past
-- job.
local function add_listed(reply, partition, state, handle, at, record, with_payload)
  local stored, reason = '', ''
  if state ~= 'e' then
    stored = redis.call('HGET', partition.state, handle) or ''
    record = with_payload and record or without_payload(record)
  end
  if state == 'd' then
    reason = redis.call('HGET', partition.reason, handle) or ''
  end
  -- The second item is the position, see browse.lua.
  for _, item in ipairs({ handle, '\0\0' .. handle, at, record, stored, reason }) do
    reply[#reply + 1] = item
  end
end

-- The handle in a position (see browse.lua). A position of Redisson's queues that begins with 1 is
-- that of a member: it follows all handles.
local function handle_at(position)
  return string.byte(position) == 0 and string.sub(position, 3) or string.rep('\255', HANDLE_BYTES)
end

-- Adds waiting jobs with other keys to those found. The version of Redisson's queues replaces this
-- one.
local function add_members()
  return false, false
end
