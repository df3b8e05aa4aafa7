-- Lists a page of the jobs of one queue in one state: native jobs and members of Redisson's sorted
-- set, by due time. Payloads in the destination list have neither id nor due time and are not
-- listed. (Words: see java.lua.)
--
-- KEYS     the keys of the queue
-- ARGV     state: 's' scheduled (not due yet), 'r' ready (due), 'l' leased, 'd' dead, 'e' ended; 'a'
--          ascending or 'd' descending, then 'p' if records are to include payloads; maximum number
--          of jobs; maximum number of bytes; the limit of the history, jobs and milliseconds; then,
--          if it is not the first page, time and position of the last job of the page before, which
--          together are the cursor
-- returns  nil: repeat the call; else {'1' if there is more, else '0', then for each job: handle,
--          position, time by which it is listed (due time, end of the lease, time of death or of the
--          end), record (of a job that has ended: the past job), state or '', reason or ''}. A position
--          is 16 bytes: 0, 0 and the handle of a native job, or 1 and the first 15 bytes of a member
-- cost     O(log n) a job; after a page whose last job is gone, O(log² m) with m jobs of that time

local partition = redisson_partition_at(0)
local stop, refusal = requeue_expired(partition, 'read')
if stop then
  return refusal
end

local state, limit, bytes_left = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local is_descending, with_payload = string.sub(ARGV[2], 1, 1) == 'd', #ARGV[2] == 2
read_history_limit(ARGV[5], ARGV[6])

-- Where to continue in the native set and in the sorted set of members. Among jobs with equal due
-- times, native jobs come before members, in descending order after them. So from a native job on,
-- all members with its time remain, or none; from a member on, no native job, or all.
local after_native, after_member
if ARGV[7] then
  local position = ARGV[8]
  if string.byte(position) == 0 then
    after_native, after_member = string.sub(position, 3), ''
  else
    after_native = string.rep('\255', HANDLE_BYTES)
    after_member = string.sub(position, 2)
    if not is_descending then
      -- The position has only the first 15 bytes of the member. What follows them are at most 2
      -- bytes of its id and the length of its payload, whose last byte (the highest, of at most 8)
      -- is never 255. So the padding sorts after every member that begins with these bytes.
      after_member = after_member .. string.rep('\255', 12)
    end
  end
end

-- The entries of a sorted set to list (member, score, …), and whether there are more.
local function entries_of(zset, after)
  local first, stop = listed_ranks(zset, state, is_descending, ARGV[7], after)
  local entries = entries_at(zset, first, stop, limit, is_descending)
  return entries, stop - first > #entries / 2
end

-- Quarantining an entry or rounding a score changes ranks: the call is then repeated.
local found, changed = {}, false
local zset, hash = zset_of(partition, state), state == 'e' and partition.past or partition.job
local entries, more = entries_of(zset, after_native)
for i = 1, #entries / 2 do
  local handle, at = entries[2 * i - 1], entries[2 * i]
  if #handle ~= HANDLE_BYTES or redis.call('HSTRLEN', hash, handle) == 0 then
    -- The history has no quarantine: see library/keys.lua.
    if state ~= 'e' then
      quarantine(partition, handle, score_time(at))
    end
    redis.call('ZREM', zset, handle)
    changed = true
  elseif round_score(zset, handle, at) then
    changed = true
    break
  end
  found[i] = { at = at, handle = handle, number = i }
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
      break
    else
      -- Native jobs precede members with equal due times, or follow them.
      local number = is_descending and i - limit or i + limit
      found[#found + 1] = {
        at = at, member = member, member_id = member_id, payload = payload, number = number,
      }
    end
  end
  -- table.sort is not stable, so `number` keeps the order of equal due times.
  for _, item in ipairs(found) do
    item.due = is_descending and -tonumber(item.at) or tonumber(item.at)
  end
  table.sort(found, function(a, b)
    return a.due < b.due or (a.due == b.due and a.number < b.number)
  end)
end
if changed then
  return nil
end

-- Adds a member to the reply. `record` is with or without the payload.
local function add_member(reply, item, handle, record)
  local position = '\1' .. string.sub(item.member .. string.rep('\0', 15), 1, 15)
  for _, value in ipairs({ handle, position, item.at, record, '', '' }) do
    reply[#reply + 1] = value
  end
end

-- Handle and record of a member; the record has no payload if none is asked for.
local function read_member(item)
  local entry = unpack_entry(item.member_id, redis.call('HGET', partition.index, item.member_id))
  local payload = with_payload and item.payload or ''
  if entry then
    return entry.handle, entry.record_prefix .. payload
  end
  local handle, tail = handle_and_tail(item.member_id)
  return handle, java_record(tail, payload)
end

local reply, taken = { '0' }, 0
for _, item in ipairs(found) do
  if taken == limit then
    break
  end
  local handle, record = item.handle, nil
  if item.member then
    handle, record = read_member(item)
  else
    record = redis.call('HGET', hash, handle)
  end
  if taken > 0 and #record > bytes_left then
    break
  end
  bytes_left = bytes_left - #record
  if item.member then
    add_member(reply, item, handle, record)
  else
    add_listed(reply, partition, state, handle, item.at, record, with_payload)
  end
  taken = taken + 1
end
if more or taken < #found then
  reply[1] = '1'
end
return reply
