-- Lists jobs of one queue in one state from a cursor on: native ones and members of Java's sorted set.
--
-- KEYS, ARGV, returns: as scripts/browse.lua. Payloads in Java's target list have neither id nor due
--          time and are not listed.
-- cost     as scripts/browse.lua

local partition = redisson_partition_at(0)
if requeue_expired(partition) then
  return nil
end

local state, limit, room = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local first, last = '-inf', '+inf'
if state == 's' then
  first = '(' .. string.format('%.0f', now)
elseif state == 'r' then
  last = now
end

-- The entries of a set after the cursor, at most `limit`, and whether there are more.
local function entries_of(zset, after)
  local start = 0
  if first ~= '-inf' then
    start = redis.call('ZCOUNT', zset, '-inf', now)
  end
  if after then
    start = math.max(start, rank_after(zset, ARGV[4], after))
  end
  local stop = redis.call('ZCOUNT', zset, '-inf', last)
  local entries = {}
  if start < stop then
    entries = redis.call('ZRANGE', zset, start, math.min(stop, start + limit) - 1, 'WITHSCORES')
  end
  return entries, stop - start > #entries / 2
end

-- A cursor's second part is 16 bytes: 0, 0 and the handle of a native job, or 1 and the first 15 bytes
-- of a member. Native jobs precede members with equal due times.
local after_native, after_java
if ARGV[4] then
  local prefix = string.sub(ARGV[5], 2)
  if string.byte(ARGV[5]) == 0 then
    after_native, after_java = string.sub(ARGV[5], 3), ''
  else
    -- Only the first bytes of the member are known. The padding is more than any member with them can
    -- continue with, since that would be its length.
    after_native, after_java = string.rep('\255', 14), prefix .. string.rep('\255', 12)
  end
end

-- Quarantined entries and corrected scores change what the cursor stands for: then the call is repeated.
local found, changed = {}, false
local zset = ({ s = partition.due, r = partition.due, l = partition.lease, d = partition.dead })[state]
local entries, more = entries_of(zset, after_native)
for i = 1, #entries / 2 do
  local handle, at = entries[2 * i - 1], entries[2 * i]
  if #handle ~= HANDLE_BYTES or redis.call('HSTRLEN', partition.job, handle) == 0 then
    quarantine(partition, handle, score_time(at))
    redis.call('ZREM', zset, handle)
    changed = true
  elseif round_score(zset, handle, at) then
    changed = true
  end
  found[i] = {
    at = at, place = '\0\0' .. handle, handle = handle,
    read = function()
      return redis.call('HGET', partition.job, handle), redis.call('HGET', partition.state, handle) or '',
        state == 'd' and redis.call('HGET', partition.reason, handle) or ''
    end,
  }
end
if state == 's' or state == 'r' then
  local others, still = entries_of(partition.timeout, after_java)
  more = more or still
  for i = 1, #others / 2 do
    local member, at = others[2 * i - 1], others[2 * i]
    local format, member_id, payload = parse(member)
    if not format then
      quarantine_member(partition, member, score_time(at))
      changed = true
    elseif round_score(partition.timeout, member, at) then
      changed = true
    else
      local entry = unpack_entry(member_id, redis.call('HGET', partition.index, member_id))
      local handle, tail = handle_and_tail(member_id)
      found[#found + 1] = {
        at = at, place = '\1' .. string.sub(member .. string.rep('\0', 15), 1, 15),
        handle = entry and entry.handle or handle,
        read = function()
          return entry and entry.header .. payload or java_record(tail, payload), '', ''
        end,
      }
    end
  end
  -- Keeps native jobs, which are first in `found`, before members with the same due time.
  for n, item in ipairs(found) do
    item.n, item.due = n, tonumber(item.at)
  end
  table.sort(found, function(a, b)
    return a.due < b.due or (a.due == b.due and a.n < b.n)
  end)
end

if changed then
  return nil
end
local reply, taken = { '0' }, 0
for _, item in ipairs(found) do
  if taken == limit then
    break
  end
  local record, packed, reason = item.read()
  if record then
    if taken > 0 and #record > room then
      break
    end
    room = room - #record
    local at = #reply
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4], reply[at + 5], reply[at + 6] =
      item.handle, item.place, item.at, record, packed, reason
  end
  taken = taken + 1
end
if more or taken < #found then
  reply[1] = '1'
end
return reply
