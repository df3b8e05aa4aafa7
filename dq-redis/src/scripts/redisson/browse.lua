-- Lists a page of the jobs of one queue in one state: native jobs and members of Redisson's sorted
-- set, by due time. Payloads in the destination list have neither id nor due time and are not
-- listed. (Words: see java.lua.)
--
-- KEYS     the keys of the queue
-- ARGV     state: 's' scheduled (not due yet), 'r' ready (due), 'l' leased, 'd' dead; maximum
--          number of jobs; maximum number of bytes; then, if it is not the first page, time and
--          position of the last job of the page before, which together are the cursor
-- returns  nil: repeat the call; else {'1' if there is more, else '0', then for each job: handle,
--          position, time by which it is listed (due time, end of the lease or time of death),
--          record, state or '', reason or ''}. A position is 16 bytes: 0, 0 and the handle of a
--          native job, or 1 and the first 15 bytes of a member
-- cost     O(log n) a job; after a page whose last job is gone, O(log² m) with m jobs of that time

local partition = redisson_partition_at(0)
if requeue_expired(partition) then
  return nil
end

local state, limit, bytes_left = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
-- The listed range of times: `scheduled` begins after now, `ready` ends now.
local max_time = state == 'r' and now or '+inf'

-- At most `limit` entries of a set (member, score, member, score, ...) after the entry `after` of
-- the cursor's time, or from the beginning if `after` is nil; and whether there are more.
local function entries_of(zset, after)
  local start = 0
  if state == 's' then
    start = redis.call('ZCOUNT', zset, '-inf', now)
  end
  if after then
    start = math.max(start, rank_after(zset, ARGV[4], after))
  end
  local stop = redis.call('ZCOUNT', zset, '-inf', max_time)
  local entries = {}
  if start < stop then
    entries = redis.call('ZRANGE', zset, start, math.min(stop, start + limit) - 1, 'WITHSCORES')
  end
  return entries, stop - start > #entries / 2
end

-- Where to continue in the native set and in the sorted set of members. Among jobs with equal due
-- times, native jobs come first: after a native job all members with its time remain, after a
-- member no native job.
local after_native, after_member
if ARGV[4] then
  local position = ARGV[5]
  if string.byte(position) == 0 then
    after_native, after_member = string.sub(position, 3), ''
  else
    after_native = string.rep('\255', HANDLE_BYTES)
    -- The position has only the first 15 bytes of the member. What follows them are at most 2 bytes
    -- of its id and the length of its payload, whose last byte (the highest, of at most 8) is never
    -- 255. So the padding sorts after every member that begins with these bytes.
    after_member = string.sub(position, 2) .. string.rep('\255', 12)
  end
end

-- Quarantining an entry or rounding a score changes ranks: the call is then repeated.
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
    at = at, position = '\0\0' .. handle, handle = handle,
    read = function()
      return redis.call('HGET', partition.job, handle), redis.call('HGET', partition.state, handle) or '',
        state == 'd' and redis.call('HGET', partition.reason, handle) or ''
    end,
  }
end
if state == 's' or state == 'r' then
  local member_entries, more_members = entries_of(partition.timeout, after_member)
  more = more or more_members
  for i = 1, #member_entries / 2 do
    local member, at = member_entries[2 * i - 1], member_entries[2 * i]
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
        at = at, position = '\1' .. string.sub(member .. string.rep('\0', 15), 1, 15),
        handle = entry and entry.handle or handle,
        read = function()
          return entry and entry.record_prefix .. payload or java_record(tail, payload), '', ''
        end,
      }
    end
  end
  -- table.sort is not stable: the number keeps native jobs, which are first in `found`, before
  -- members with the same due time.
  for n, item in ipairs(found) do
    item.number, item.due = n, tonumber(item.at)
  end
  table.sort(found, function(a, b)
    return a.due < b.due or (a.due == b.due and a.number < b.number)
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
    if taken > 0 and #record > bytes_left then
      break
    end
    bytes_left = bytes_left - #record
    local at = #reply
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4], reply[at + 5], reply[at + 6] =
      item.handle, item.position, item.at, record, packed, reason
  end
  taken = taken + 1
end
if more or taken < #found then
  reply[1] = '1'
end
return reply
