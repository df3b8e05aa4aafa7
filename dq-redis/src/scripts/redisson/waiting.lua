-- Functions of the native library, defined again for queues in which jobs wait as members or as
-- payloads in the destination list. A function here replaces the native one of the same name for the
-- scripts, and often calls it. keys.lua has the words.

local native_check_types_of_job = check_types_of_job
local function check_types_of_job(partition)
  native_check_types_of_job(partition)
  order_length(partition)
end

-- Finds a job: see library/find.lua. A job that waits as a member also has the fields of an index
-- entry, as from waiting_entry. In the hash `key`, a native job is given by its handle, a member by
-- handle and tail.
local native_find_job = find_job
local function find_job(partition, target)
  local id = string.sub(target, 2)
  if string.byte(target) == string.byte('k') then
    id = redis.call('HGET', partition.key, id)
    if not id or #id ~= HANDLE_BYTES + 2 then
      return native_find_job(partition, target)
    end
  end
  local native_job = native_find_job(partition, 'i' .. id)
  if native_job then
    return native_job
  end
  local handle, tail = string.sub(id, 1, HANDLE_BYTES), string.sub(id, HANDLE_BYTES + 1)
  return waiting_entry(partition, member_id_of(join_id(handle, tail)))
end

local native_state_of = state_of
local function state_of(partition, job)
  if job.member then
    return 'w', string.format('%.0f', job.due)
  end
  return native_state_of(partition, job)
end

-- Ends a job that waits as a member.
local function end_member(partition, entry, letter)
  add_ended_unleased(partition, entry.handle, letter, entry.record_prefix, entry.due, '')
  redis.call('ZREM', partition.timeout, entry.member)
  remove_from_order(partition, { entry.member }, { entry.member_id })
  remove_entry(partition, entry)
end

local native_end_waiting = end_waiting
local function end_waiting(partition, job, due, letter)
  if job.member then
    end_member(partition, job, letter)
  else
    native_end_waiting(partition, job, due, letter)
  end
end

local native_move_waiting = move_waiting
local function move_waiting(partition, job, due)
  if not job.member then
    return native_move_waiting(partition, job, due)
  end
  redis.call('ZADD', partition.timeout, due, job.member)
  local packed = pack_entry(due, job.handle, job.record_prefix)
  redis.call('HSET', partition.index, job.member_id, packed)
  return job.member
end

-- A job that waits as a member was never leased, so it has no state.
local native_view_job = view_job
local function view_job(partition, job)
  if not job.member then
    return native_view_job(partition, job)
  end
  local state, due = state_of(partition, job)
  return { now, job.handle, state, due, job.record_prefix .. job.payload, '', '' }
end

-- Counts members, too, and payloads in the destination list, as due now.
local native_count_due = count_due
local function count_due(partition, from, to)
  local count = native_count_due(partition, from, to)
    + redis.call('ZCOUNT', partition.timeout, from, '(' .. to)
  if tonumber(from) <= now and now < tonumber(to) then
    count = count + redis.call('LLEN', partition.destination)
  end
  return count
end

local native_count_waiting = count_waiting
local function count_waiting(partition)
  local ready, waiting, first_due = native_count_waiting(partition)
  local in_destination = redis.call('LLEN', partition.destination)
  for _, due in ipairs({ earliest(partition.timeout) or false, in_destination > 0 and now }) do
    first_due = due and math.min(first_due or due, due) or first_due
  end
  return ready + redis.call('ZCOUNT', partition.timeout, '-inf', now) + in_destination,
    waiting + redis.call('ZCARD', partition.timeout) + in_destination, first_due
end

-- Removes native jobs first, then members, then payloads in the destination list.
local native_clear = clear
local function clear(partition, max)
  local limit, removed = native_clear(partition, max)
  if removed < limit then
    max = math.min(limit - removed, max_per_call(partition))
    local entries = redis.call('ZRANGE', partition.timeout, 0, max - 1, 'WITHSCORES')
    for i = 1, #entries, 2 do
      local member, due = entries[i], score_time(entries[i + 1])
      local _, member_id = parse(member)
      local entry = member_id and unpack_entry(member_id, redis.call('HGET', partition.index, member_id))
      if entry then
        entry.member, entry.due = member, due
        end_member(partition, entry, 'M')
      else
        if member_id then
          local handle, tail = handle_and_tail(member_id)
          add_ended_unleased(partition, handle, 'M', java_record(tail, ''), due, '')
        end
        redis.call('ZREM', partition.timeout, member)
        remove_from_order(partition, { member }, { member_id or '' })
      end
      removed = removed + 1
    end
    if redis.call('ZCARD', partition.timeout) == 0 then
      -- No member waits, so all entries of the order list are garbage. With visibility `hidden` a
      -- key of another type counts as empty (see order_length): it is foreign, and stays.
      if order_length(partition) > 0 then
        redis.call('UNLINK', partition.order)
      end
      redis.call('HDEL', partition.meta, 'garbage')
      -- What is left in the index are entries of jobs that Java took. Each may own a key and a state
      -- (see remove_entry), so they are removed one by one, some in each call.
      sweep_index(partition)
    end
  end
  if removed < limit then
    removed = removed + #(redis.call('LPOP', partition.destination, limit - removed) or {})
  end
  return limit, removed
end

-- The due time of the first member, or of payloads in the destination list, which are due now; nil if
-- no job waits in either.
local function first_of_java(partition)
  if redis.call('LLEN', partition.destination) > 0 then
    return now
  end
  return earliest(partition.timeout)
end

local native_next_time = next_time
local function next_time(partition)
  local native, java = native_next_time(partition), first_of_java(partition)
  return native and java and math.min(native, java) or native or java or false
end

-- Adds the members of a page to the native jobs `found`. Returns whether there are more, and whether
-- any had to be repaired.
local function add_members(found, partition, page)
  local after = ''
  if page.position and string.byte(page.position) == 1 then
    after = string.sub(page.position, 2)
    if not page.is_descending then
      -- The position has only the first 15 bytes of the member. What follows them are at most 2 bytes
      -- of its id and the length of its payload, whose last byte (the highest, of at most 8) is never
      -- 255. So the padding sorts after every member that begins with these bytes.
      after = after .. string.rep('\255', 12)
    end
  end
  local zset, limit, is_descending = partition.timeout, page.limit, page.is_descending
  local first, stop =
    listed_ranks(zset, page.state, is_descending, page.time, page.position and after)
  local entries = entries_at(zset, first, stop, limit, is_descending)
  local is_repaired = false
  for i = 1, #entries, 2 do
    local member, time = entries[i], entries[i + 1]
    local format, member_id, payload = parse(member)
    if not format then
      quarantine_member(partition, member, score_time(time))
      is_repaired = true
    elseif round_score(zset, member, time) then
      is_repaired = true
      break
    else
      local handle = handle_and_tail(member_id)
      found[#found + 1] = {
        time = time, handle = handle, member_id = member_id, payload = payload,
        position = '\1' .. string.sub(member .. string.rep('\0', 15), 1, 15),
      }
    end
  end
  return stop - first > #entries / 2, is_repaired
end

-- Lists native jobs and members in order of due time. Among equal due times, native jobs precede
-- members, or follow them in descending order: from a native job on, all members with its time
-- remain, or none. The position of a member begins with 1 and has its first 15 bytes.
local native_listed_jobs = listed_jobs
local function listed_jobs(partition, page)
  local native_page = page
  if page.position and string.byte(page.position) == 1 then
    -- A member follows all handles.
    local after_handles = '\0\0' .. string.rep('\255', HANDLE_BYTES)
    native_page = setmetatable({ position = after_handles }, { __index = page })
  end
  local found, has_more, is_repaired = native_listed_jobs(partition, native_page)
  if page.state ~= 's' and page.state ~= 'r' then
    return found, has_more, is_repaired
  end
  local native_jobs = #found
  local more_members, repaired_members = add_members(found, partition, page)
  -- table.sort is not stable, so `rank` keeps the order of equal due times.
  for i, entry in ipairs(found) do
    local is_first = (i <= native_jobs) ~= page.is_descending
    entry.rank = is_first and i or i + 2 * page.limit
    entry.due = page.is_descending and -tonumber(entry.time) or tonumber(entry.time)
  end
  table.sort(found, function(a, b)
    return a.due < b.due or (a.due == b.due and a.rank < b.rank)
  end)
  return found, has_more or more_members, is_repaired or repaired_members
end

local native_read_listed = read_listed
local function read_listed(partition, page, entry)
  if not entry.member_id then
    return native_read_listed(partition, page, entry)
  end
  local payload = page.with_payload and entry.payload or ''
  local raw = redis.call('HGET', partition.index, entry.member_id)
  local indexed = unpack_entry(entry.member_id, raw)
  if indexed then
    entry.handle = indexed.handle
    return indexed.record_prefix .. payload, '', ''
  end
  local _, tail = handle_and_tail(entry.member_id)
  return java_record(tail, payload), '', ''
end

-- Publishes the first due time of the members, and that of the native jobs, if the job is one of
-- these entries. The time of a native job is published only if no member is due before it: Java's
-- clients, which know only members, replace their timer by the time of any message.
local function publish_if_first(channel, partition, entries)
  if #entries == 0 then
    return
  end
  -- The call has taken effect: a key of another type must not make it fail.
  local is_readable, first_member = pcall(first_of, partition.timeout, entries)
  if is_readable and first_member then
    redis.call('PUBLISH', channel, first_member)
  end
  local first_native = first_of(partition.due, entries)
  local earliest_member = is_readable and earliest(partition.timeout)
  if first_native and not (earliest_member and earliest_member < tonumber(first_native)) then
    redis.call('PUBLISH', channel, first_native)
  end
end
