-- What the scripts of the `redisson` backend share besides library/: Redisson's keys, how its
-- entries are packed, and the index of the jobs that this backend scheduled. A line before the
-- library sets two locals from the settings:
--   FORMAT      'current' or 'legacy': how members are packed, see `parse`
--   VISIBILITY  which waiting jobs the order list holds besides those that Java offered: with
--               'hidden' none; with 'approximate' all, removed some time after they ceased to wait;
--               with 'exact' all, removed at once
--
-- A queue has one partition: the native keys, which library/keys.lua describes, and four more:
--   timeout      sorted set  redisson_delay_queue_timeout:{queue}: waiting jobs by due time, called
--                            *members*: an id, a length and the payload in one string
--   order        list        redisson_delay_queue:{queue}, the *order list*: the members once more,
--                            in the order in which they were offered. Java's size, contains, remove,
--                            readAll and poll read it
--   destination  list        named like the queue, the *destination list*: payloads that Java's
--                            take() pops. Java's transfer script moves due jobs there
--   index        hash        waiting jobs that this backend scheduled or has found by locate.lua, by
--                            member id. An *index entry* is 8 bytes of due time (big-endian), the
--                            handle (14 bytes) and the record prefix
--
-- Until its first lease a job is a member. With the lease it becomes a *native job*: leases,
-- retries and dead jobs are kept in the native keys only. Java takes and removes members without
-- updating the index, so an index entry counts only while its member exists.
--
-- A *member id* is the id in a member: a job id, shortened as redisson/member.rs says. The hash
-- `meta` has two more fields: `garbage`, about how many entries of the order list do not wait any
-- more, and `sweep`, the HSCAN cursor of sweep_index.

local NATIVE_KEYS = KEYS_PER_PARTITION
local KEYS_PER_PARTITION = NATIVE_KEYS + 4

-- Shadows the function of the library, as others below that have its name.
local native_partition_at = partition_at
local function partition_at(n)
  local partition = native_partition_at(n, KEYS_PER_PARTITION)
  local first = n * KEYS_PER_PARTITION + NATIVE_KEYS
  partition.timeout, partition.order = KEYS[first + 1], KEYS[first + 2]
  partition.destination, partition.index = KEYS[first + 3], KEYS[first + 4]
  return partition
end

-- Second half of the job id of a job that Java scheduled. The first half is its member id of 8
-- bytes.
local JAVA_SUFFIX = 'redisson'
-- Number of members or payloads that are read before their sizes are added up, so that no call
-- reads many large ones.
local READ_BATCH = 8
-- Maximum number of bytes that one call moves, unless a single payload is larger.
local MAX_BYTES = 1048576
-- Maximum number of members that one call removes.
local MAX_REMOVED = 100
-- Size of the length in a member, which Redisson packs as the server's `unsigned long`.
local LENGTH_BYTES = struct.size('L')

-- A job id as handle and tail, and back: see handle.rs.
local function split_id(id)
  local c, d, e, f = string.byte(id, 13, 16)
  return string.sub(id, 1, 12) .. string.char(bit.bxor(c, e), bit.bxor(d, f)), string.sub(id, 15)
end

local function join_id(handle, tail)
  local c, d = string.byte(handle, 13, 14)
  local e, f = string.byte(tail, 1, 2)
  return string.sub(handle, 1, 12) .. string.char(bit.bxor(c, e), bit.bxor(d, f)) .. tail
end

-- The member id of a job id: see redisson/member.rs.
local function member_id_of(id)
  if string.sub(id, 9) == JAVA_SUFFIX then
    return string.sub(id, 1, 8)
  end
  if FORMAT == 'legacy' then
    return string.sub(id, 9)
  end
  local first, seventh = string.byte(id), string.byte(id, 7)
  if math.floor(seventh / 16) == 7 and first < 16 then
    return struct.pack('>I6', struct.unpack('>I6', id) * 16 + seventh % 16) .. string.sub(id, 8)
  end
  return id
end

-- The job id of a member id. One of a length that neither Java nor this backend writes is cut or
-- padded with zeros. (112 is the byte 0x70: version 7 in its upper four bits.)
local function job_id_of(member_id)
  if #member_id == 15 then
    local head = struct.unpack('>I6', member_id)
    return struct.pack('>I6', math.floor(head / 16))
      .. string.char(112 + head % 16) .. string.sub(member_id, 7)
  elseif #member_id == 8 then
    return member_id .. JAVA_SUFFIX
  end
  return string.sub(member_id .. string.rep('\0', 16), 1, 16)
end

-- Member ids of 15 bytes, the usual ones, are converted without building the job id.
local function handle_and_tail(member_id)
  if #member_id ~= 15 then
    return split_id(job_id_of(member_id))
  end
  local head = struct.unpack('>I6', member_id)
  local c, d, e, f = string.byte(member_id, 12, 15)
  return struct.pack('>I6', math.floor(head / 16)) .. string.char(112 + head % 16)
      .. string.sub(member_id, 7, 11) .. string.char(bit.bxor(c, e), bit.bxor(d, f)),
    string.sub(member_id, 14)
end

local function member_prefix(member_id)
  if FORMAT == 'legacy' then
    return member_id
  end
  return string.char(#member_id) .. member_id
end

-- Packed lengths by length: the payloads of one call often have the same length.
local packed_lengths = {}

local function pack_member(member_id, payload)
  local size = #payload
  local length = packed_lengths[size]
  if not length then
    length = struct.pack('L', size)
    packed_lengths[size] = length
  end
  if FORMAT == 'legacy' then
    return member_id .. length .. payload
  end
  return string.char(#member_id) .. member_id .. length .. payload
end

-- The payload whose length begins at byte `from`; nil unless it ends with the member.
local function payload_at(member, from)
  if #member >= from + LENGTH_BYTES - 1 then
    local length = struct.unpack('L', member, from)
    if from + LENGTH_BYTES - 1 + length == #member then
      return string.sub(member, from + LENGTH_BYTES)
    end
  end
  return nil
end

-- Format, member id and payload of a member that is packed in this format; nil if it is not. A member
-- that begins with a 7 counts as legacy: see `parse_as` in redisson/member.rs.
local function parse_as(format, member)
  local first, last = 1, 8
  if format == 'current' then
    local length = string.byte(member)
    if not length or length == 7 then
      return nil
    end
    first, last = 2, 1 + length
  end
  local payload = payload_at(member, last + 1)
  if payload then
    return format, string.sub(member, first, last), payload
  end
  return nil
end

-- The same, in the format of the settings if it fits, else in the other one: a payload can be such that
-- both fit.
local function parse(member)
  local format, member_id, payload = parse_as(FORMAT, member)
  if format then
    return format, member_id, payload
  end
  return parse_as(FORMAT == 'current' and 'legacy' or 'current', member)
end

-- Judged by the first and last member: members of two formats are never mixed, because they break
-- the transfer script of Java clients.
local function has_other_format(partition)
  for _, rank in ipairs({ '0', '-1' }) do
    local member = redis.call('ZRANGE', partition.timeout, rank, rank)[1]
    local format = member and parse(member)
    if format and format ~= FORMAT then
      return true
    end
  end
  return false
end

-- The record of a job that Java scheduled, accepted now.
local function java_record(tail, payload)
  return struct.pack('>I6', now) .. tail .. '\0' .. payload
end

-- The member with this due time and member id; nil if there is none. Usually few members have the
-- same due time, so the first two are tried before a binary search.
local function find_member(partition, due, member_id)
  local score = string.format('%.0f', due)
  local prefix = member_prefix(member_id)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', partition.timeout, score, score, 'LIMIT', 0, 2)) do
    if string.sub(member, 1, #prefix) == prefix then
      return member
    end
  end
  local rank = rank_from(partition.timeout, score, prefix)
  local member = redis.call('ZRANGE', partition.timeout, rank, rank)[1]
  if member and string.sub(member, 1, #prefix) == prefix then
    return member
  end
  return nil
end

-- The length of the order list. Fails on a key of another type, except with visibility `hidden`:
-- then nothing is added there, and such a key counts as empty.
local function order_length(partition)
  if VISIBILITY ~= 'hidden' then
    return redis.call('LLEN', partition.order)
  end
  local length = redis.pcall('LLEN', partition.order)
  return type(length) == 'number' and length or 0
end

local native_check_types_of_job = check_types_of_job
local function check_types_of_job(partition)
  native_check_types_of_job(partition)
  order_length(partition)
end

-- With so many entries in the order list, a removal with visibility `exact` takes about 5 ms: it
-- passes half of them on average, at about 55 ns each.
local ENTRIES_PER_CALL = 180000

-- Maximum number of members that this call removes, so that it ends within 5 ms.
local function max_per_call(partition)
  if VISIBILITY ~= 'exact' then
    return MAX_REMOVED
  end
  local max = math.floor(ENTRIES_PER_CALL / (order_length(partition) + 1))
  return math.max(1, math.min(MAX_REMOVED, max))
end

-- Quarantines a member that is packed in neither format: it would break Java's transfer script. It
-- moves from the sorted set and the order list to the partition's `quarantine`.
local function quarantine_member(partition, member, score)
  local length = order_length(partition)
  quarantine(partition, member, score)
  redis.call('ZREM', partition.timeout, member)
  if length > 0 then
    redis.call('LREM', partition.order, 1, member)
  end
end

local function pack_entry(due, handle, record_prefix)
  return struct.pack('>i8', due) .. handle .. record_prefix
end

-- For member ids of 15 bytes it is enough to compare what member id and handle contain unchanged:
-- bytes 8 to 12 of the job id (mostly random bits), and the tail.
local function belongs_to(member_id, handle, record_prefix)
  if #member_id == 15 then
    return string.sub(member_id, 7, 11) == string.sub(handle, 8, 12)
      and string.sub(member_id, 14) == id_tail(record_prefix)
  end
  return member_id_of(join_id(handle, id_tail(record_prefix))) == member_id
end

-- Handle and record prefix of a packed index entry; nil if there is none, or it is malformed or of
-- another job.
local function read_entry(member_id, raw)
  if not raw or #raw < 8 + HANDLE_BYTES + RECORD_BYTES then
    return nil
  end
  local handle, record_prefix = string.sub(raw, 9, 22), string.sub(raw, 23)
  -- Most jobs have neither key, limit nor headers: then the record prefix has the minimum length.
  -- prefix_length takes a record without its first 6 bytes, the time.
  if #record_prefix ~= RECORD_BYTES or string.byte(record_prefix, RECORD_BYTES) % 8 > 0 then
    local readable, length = pcall(prefix_length, string.sub(record_prefix, 7))
    if not readable or length ~= #record_prefix - 6 then
      return nil
    end
  end
  if not belongs_to(member_id, handle, record_prefix) then
    return nil
  end
  return handle, record_prefix
end

local function unpack_entry(member_id, raw)
  local handle, record_prefix = read_entry(member_id, raw)
  return handle and {
    due = struct.unpack('>i8', raw), handle = handle, record_prefix = record_prefix,
    member_id = member_id,
  }
end

-- Removes an index entry, the job's first state, and its key unless another job has that key by now.
local function remove_entry(partition, entry)
  redis.call('HDEL', partition.index, entry.member_id)
  if is_to_be_pinned(entry.record_prefix)
    and redis.call('HSTRLEN', partition.job, entry.handle) == 0
  then
    redis.call('HDEL', partition.state, entry.handle)
  end
  local key = record_key(entry.record_prefix)
  local id = entry.handle .. id_tail(entry.record_prefix)
  if key ~= '' and redis.call('HGET', partition.key, key) == id then
    redis.call('HDEL', partition.key, key)
  end
end

-- The index entry of a waiting job, with the fields `member` and `payload` added. Nil if there is
-- no entry. If its member is gone, removes the entry and returns nil.
local function waiting_entry(partition, member_id)
  local entry = unpack_entry(member_id, redis.call('HGET', partition.index, member_id))
  if not entry then
    return nil
  end
  entry.member = find_member(partition, entry.due, member_id)
  if not entry.member then
    remove_entry(partition, entry)
    return nil
  end
  local _, _, payload = parse(entry.member)
  entry.payload = payload
  return payload and entry
end

-- Finds a job that is given as 'i' with handle and tail, or as 'k' with a key. Returns the handle
-- of a native job; nil and an entry as from waiting_entry for a job that waits as a member; else
-- nil, nil. In the hash `key`, a native job is given by its handle, a member by handle and tail.
local function find_job(partition, target)
  local rest = string.sub(target, 2)
  -- 107 is 'k'.
  if string.byte(target) == 107 then
    rest = redis.call('HGET', partition.key, rest)
    if rest and #rest == HANDLE_BYTES then
      return redis.call('HSTRLEN', partition.job, rest) >= RECORD_BYTES and rest or nil, nil
    end
    if not rest or #rest ~= HANDLE_BYTES + 2 then
      return nil, nil
    end
  end
  local handle, tail = string.sub(rest, 1, 14), string.sub(rest, 15)
  local record = redis.call('HGET', partition.job, handle)
  if record and id_tail(record) == tail then
    return handle, nil
  end
  return nil, waiting_entry(partition, member_id_of(join_id(handle, tail)))
end

-- Removes members from the order list, or counts them as garbage there, which sweep_order removes.
-- With visibility `hidden` only members that Java offered (with an id of 8 bytes) are in the list.
local function remove_from_order(partition, members, member_ids)
  local garbage = 0
  for i, member in ipairs(members) do
    if VISIBILITY == 'exact' then
      redis.call('LREM', partition.order, 1, member)
    elseif VISIBILITY == 'approximate' or #member_ids[i] == 8 then
      garbage = garbage + 1
    end
  end
  add_total(partition, 'garbage', garbage)
end

-- Ends a waiting job with an index entry as from waiting_entry.
local function end_member(partition, entry, letter)
  add_ended_unleased(partition, entry.handle, letter, entry.record_prefix, entry.due, '')
  redis.call('ZREM', partition.timeout, entry.member)
  remove_from_order(partition, { entry.member }, { entry.member_id })
  remove_entry(partition, entry)
end

-- Gives a waiting job with an index entry another due time. Returns handle and tail.
local function move_member(partition, entry, due)
  redis.call('ZADD', partition.timeout, due, entry.member)
  local packed = pack_entry(due, entry.handle, entry.record_prefix)
  redis.call('HSET', partition.index, entry.member_id, packed)
  return entry.handle .. id_tail(entry.record_prefix)
end

-- A waiting job with an index entry, as the reply of get.lua: it was never leased, so has no state.
local function view_member(entry)
  local due, record = string.format('%.0f', entry.due), entry.record_prefix .. entry.payload
  return { now, entry.handle, 'w', due, record, '', '' }
end

-- Sweeps the order list if a tenth of it is garbage: pops entries from its front and appends those
-- that still wait. It pops ten for each member just `removed`, so that the sweep keeps up, but not
-- more than MAX_BYTES if entries have the size of the largest of those members.
local function sweep_order(partition, removed)
  local garbage = tonumber(redis.call('HGET', partition.meta, 'garbage') or 0) or 0
  local length = order_length(partition)
  if garbage <= 0 or garbage * 10 < length then
    return
  end
  local largest = 1
  for _, member in ipairs(removed) do
    largest = math.max(largest, #member)
  end
  local max = math.max(1, math.min(10 * #removed, math.floor(MAX_BYTES / largest)))
  if length == 0 then
    redis.call('HDEL', partition.meta, 'garbage')
    return
  end
  local members = redis.call('LPOP', partition.order, max)
  local scores = redis.call('ZMSCORE', partition.timeout, unpack(members))
  local kept = {}
  for i, member in ipairs(members) do
    if scores[i] then
      kept[#kept + 1] = member
    end
  end
  send('RPUSH', partition.order, kept)
  local remaining = garbage - (#members - #kept)
  if remaining > 0 then
    redis.call('HSET', partition.meta, 'garbage', string.format('%.0f', remaining))
  else
    redis.call('HDEL', partition.meta, 'garbage')
  end
end

local SWEPT_ENTRIES = 20

-- Removes index entries of jobs that Java took or removed, some at a time, if the index has more
-- entries than the sorted set has members. Entries that are not due yet are left: they are removed
-- when they are looked up.
local function sweep_index(partition)
  if redis.call('HLEN', partition.index) <= redis.call('ZCARD', partition.timeout) then
    return
  end
  local cursor = redis.call('HGET', partition.meta, 'sweep') or '0'
  if #cursor > 19 or string.find(cursor, '%D') or cursor == '' then
    cursor = '0'
  end
  local page = redis.call('HSCAN', partition.index, cursor, 'COUNT', SWEPT_ENTRIES)
  redis.call('HSET', partition.meta, 'sweep', page[1])
  for i = 1, #page[2], 2 do
    local entry = unpack_entry(page[2][i], page[2][i + 1])
    if not entry then
      redis.call('HDEL', partition.index, page[2][i])
    elseif entry.due < now and not find_member(partition, entry.due, entry.member_id) then
      remove_entry(partition, entry)
    end
  end
end

local function key_is_live(partition, key)
  local handle, entry = find_job(partition, 'k' .. key)
  return handle or entry
end

-- Members count, too, and payloads in the destination list, as due now.
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

-- Native jobs first, then members, then payloads in the destination list.
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

-- Adds members after a position to the native jobs in a page, in order of due time. Returns whether
-- there are more, and whether entries were repaired. Among equal due times, native jobs precede
-- members, or follow them in descending order: from a native job on, all members with its time
-- remain, or none.
local function add_members(found, partition, state, limit, is_descending, at, position)
  local after = position and string.byte(position) == 1 and string.sub(position, 2) or ''
  if after ~= '' and not is_descending then
    -- The position has only the first 15 bytes of the member. What follows them are at most 2 bytes
    -- of its id and the length of its payload, whose last byte (the highest, of at most 8) is never
    -- 255. So the padding sorts after every member that begins with these bytes.
    after = after .. string.rep('\255', 12)
  end
  local first, stop = listed_ranks(partition.timeout, state, is_descending, at, position and after)
  local entries = entries_at(partition.timeout, first, stop, limit, is_descending)
  local repaired = false
  for i = 1, #entries / 2 do
    local member, due = entries[2 * i - 1], entries[2 * i]
    local format, member_id, payload = parse(member)
    if not format then
      quarantine_member(partition, member, score_time(due))
      repaired = true
    elseif round_score(partition.timeout, member, due) then
      repaired = true
      break
    else
      found[#found + 1] = {
        at = due, member = member, member_id = member_id, payload = payload,
        number = is_descending and i - limit or i + limit,
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
  return stop - first > #entries / 2, repaired
end

-- Handle and record of a member; the record has no payload if none is asked for.
local function read_member(partition, item, with_payload)
  local entry = unpack_entry(item.member_id, redis.call('HGET', partition.index, item.member_id))
  local payload = with_payload and item.payload or ''
  if entry then
    return entry.handle, entry.record_prefix .. payload
  end
  local handle, tail = handle_and_tail(item.member_id)
  return handle, java_record(tail, payload)
end

local function add_listed_member(reply, item, handle, record)
  local position = '\1' .. string.sub(item.member .. string.rep('\0', 15), 1, 15)
  for _, value in ipairs({ handle, position, item.at, record, '', '' }) do
    reply[#reply + 1] = value
  end
end

-- There is no index of queues: Java adds jobs.
local function look_at()
end

-- Publishes the time of the first entry of a sorted set if it is one of these entries, but that of a
-- native job only if no member is due before it: Java's clients, which know only members, replace their
-- timer by the time of any message.
local function publish_if_first(channel, partition, zset, entries)
  local first = first_of(zset, entries)
  if not first then
    return
  end
  if zset ~= partition.timeout then
    -- The call has taken effect: a key of another type must not make it fail.
    local succeeded, earliest_member = pcall(earliest, partition.timeout)
    if succeeded and earliest_member and earliest_member < tonumber(first) then
      return
    end
  end
  redis.call('PUBLISH', channel, first)
end
