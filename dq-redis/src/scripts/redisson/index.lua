-- The index: the waiting jobs that this backend scheduled or has found, by member id. keys.lua has the
-- words.

-- An index entry as it is stored.
local function pack_entry(due, handle, record_prefix)
  return struct.pack('>i8', due) .. handle .. record_prefix
end

-- Whether handle and record prefix are those of the job with this member id. For member ids of 15
-- bytes it is enough to compare what both contain unchanged: bytes 8 to 12 of the job id (mostly
-- random bits), and the tail.
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

-- The fields of a stored index entry; nil as from read_entry.
local function unpack_entry(member_id, raw)
  local handle, record_prefix = read_entry(member_id, raw)
  return handle and {
    due = struct.unpack('>i8', raw), handle = handle, tail = id_tail(record_prefix),
    record_prefix = record_prefix, member_id = member_id,
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
  local id = entry.handle .. entry.tail
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

-- Maximum number of index entries that one call sweeps.
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
