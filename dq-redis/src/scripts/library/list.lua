-- Parts of listings.

-- The ranks of the entries to list: at least the first, and less than the second. `time` and `member`
-- are those of the last entry of the previous page; nil for the first page. For state 'e' the script
-- has called read_history_limit.
local function listed_ranks(zset, state, is_descending, time, member)
  local first, stop = 0, redis.call('ZCARD', zset)
  if state == 's' then
    first = redis.call('ZCOUNT', zset, '-inf', now_text)
  elseif state == 'r' then
    stop = redis.call('ZCOUNT', zset, '-inf', now_text)
  elseif state == 'e' then
    first = math.min(stop, math.max(0, count_forgotten(zset)))
  end
  if time and is_descending then
    stop = math.min(stop, rank_from(zset, time, member))
  elseif time then
    first = math.max(first, rank_after(zset, time, member))
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

-- Adds the entries of a page that are in one sorted set. Returns whether there are more, and whether any
-- had to be repaired.
local function add_listed(found, partition, zset, page)
  local is_history = page.state == 'e'
  local hash = is_history and partition.past or partition.job
  -- A position is two zero bytes and the handle.
  local last_handle = page.position and string.sub(page.position, 3)
  local first, stop = listed_ranks(zset, page.state, page.is_descending, page.time, last_handle)
  local entries = entries_at(zset, first, stop, page.limit, page.is_descending)
  local is_repaired = false
  for i = 1, #entries, 2 do
    local handle, time = entries[i], entries[i + 1]
    if #handle ~= HANDLE_BYTES or redis.call('HSTRLEN', hash, handle) == 0 then
      -- The history has no quarantine: see library/keys.lua.
      if not is_history then
        quarantine(partition, handle, score_time(time))
      end
      redis.call('ZREM', zset, handle)
      is_repaired = true
    elseif round_score(zset, handle, time) then
      -- It may have changed the scores of the entries that follow, too.
      is_repaired = true
      break
    end
    found[#found + 1] = { time = time, handle = handle, position = '\0\0' .. handle }
  end
  return stop - first > #entries / 2, is_repaired
end

-- Reads the entries of a page. `page` has the fields state, limit, is_descending, with_payload and,
-- if a page precedes it, time and position of the last job there: see browse.lua. Returns the
-- entries (tables with `time`, `handle` and `position`), whether there are more, and whether any had
-- to be repaired. A repair changes the ranks of other entries, so the page is then read again. A
-- layout with waiting jobs in other keys replaces this function and the next.
local function listed_jobs(partition, page)
  local zsets = {
    s = partition.due, r = partition.due, l = partition.lease, d = partition.dead,
    e = partition.ended,
  }
  local found = {}
  local has_more, is_repaired = add_listed(found, partition, zsets[page.state], page)
  if zsets[page.state] == partition.due and has_groups(partition) then
    local more_parked, repaired_parked = add_listed(found, partition, partition.parked, page)
    has_more, is_repaired = has_more or more_parked, is_repaired or repaired_parked
    table.sort(found, function(a, b)
      local x, y = page.is_descending and b or a, page.is_descending and a or b
      local earlier, later = tonumber(x.time), tonumber(y.time)
      return earlier < later or earlier == later and precedes(x.handle, y.handle)
    end)
  end
  return found, has_more, is_repaired
end

-- Record (or past job), stored state or '', and reason or '' of an entry as from listed_jobs.
local function read_listed(partition, page, entry)
  if page.state == 'e' then
    return redis.call('HGET', partition.past, entry.handle), '', ''
  end
  local reason = page.state == 'd' and redis.call('HGET', partition.reason, entry.handle)
  return redis.call('HGET', partition.job, entry.handle),
    redis.call('HGET', partition.state, entry.handle) or '', reason or ''
end
