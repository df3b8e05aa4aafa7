-- Follows prelude.lua in the scripts of the Redisson layout: Java's keys and members, and the index of
-- the jobs that were scheduled here.
--
-- Until its first lease a job is a member of Java's sorted set. From then on it is native: leases,
-- retries and dead jobs are kept in the native structures only.
--
-- The index finds a member by id or key. Its fields are member ids (see redisson/member.rs), its values
-- 8 bytes of due time, the handle, and the record without the payload. Java removes members without
-- updating the index, so an entry is valid only while its member exists.

KEYS_PER_PARTITION = 13

local function redisson_partition_at(n)
  local partition = partition_at(n, KEYS_PER_PARTITION)
  partition.timeout, partition.order = KEYS[partition.first + 10], KEYS[partition.first + 11]
  partition.target, partition.index = KEYS[partition.first + 12], KEYS[partition.first + 13]
  return partition
end

local JAVA_SUFFIX = 'redisson'
-- Members or payloads that are read before their sizes are added up. A claim reads twice as many at a
-- time while they are small.
local FEW = 8
-- Most bytes that one call moves, unless a single payload is larger.
local MOST_BYTES = 1048576
-- Most members that one call removes.
local MAX_REMOVED = 100
local LENGTH = struct.size('L')

-- An id as handle and tail, and back: see handle.rs.
local function split_id(id)
  local c, d, e, f = string.byte(id, 13, 16)
  return string.sub(id, 1, 12) .. string.char(bit.bxor(c, e), bit.bxor(d, f)), string.sub(id, 15)
end

local function join_id(handle, tail)
  local c, d = string.byte(handle, 13, 14)
  local e, f = string.byte(tail, 1, 2)
  return string.sub(handle, 1, 12) .. string.char(bit.bxor(c, e), bit.bxor(d, f)) .. tail
end

-- The member id of a job id, and back: see redisson/member.rs.
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

-- Handle and tail of the job with this member id. Member ids of 15 bytes, the usual ones, are converted
-- without building the job id.
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

-- The bytes with which a member begins.
local function member_prefix(member_id)
  if FORMAT == 'legacy' then
    return member_id
  end
  return string.char(#member_id) .. member_id
end

-- Packed lengths by length: the payloads of one call often have the same length.
local lengths = {}

local function pack_member(member_id, payload)
  local size = #payload
  local length = lengths[size]
  if not length then
    length = struct.pack('L', size)
    lengths[size] = length
  end
  if FORMAT == 'legacy' then
    return member_id .. length .. payload
  end
  return string.char(#member_id) .. member_id .. length .. payload
end

local function payload_at(member, from)
  if #member >= from + LENGTH - 1 then
    local length = struct.unpack('L', member, from)
    if from + LENGTH - 1 + length == #member then
      return string.sub(member, from + LENGTH)
    end
  end
  return nil
end

-- Format, member id and payload of a member; nil if it is packed in neither format.
local function parse(member)
  local length = string.byte(member)
  if length and length ~= 7 then
    local payload = payload_at(member, 2 + length)
    if payload then
      return 'current', string.sub(member, 2, 1 + length), payload
    end
  end
  local payload = payload_at(member, 9)
  if payload then
    return 'legacy', string.sub(member, 1, 8), payload
  end
  return nil
end

-- Whether a queue holds members of the other format. Members of two formats in one queue break the
-- transfer script of Java clients, so they are never mixed.
local function has_other_format(partition)
  for _, at in ipairs({ '0', '-1' }) do
    local member = redis.call('ZRANGE', partition.timeout, at, at)[1]
    local format = member and parse(member)
    if format and format ~= FORMAT then
      return true
    end
  end
  return false
end

-- The record of a job that Java scheduled.
local function java_record(tail, payload)
  return struct.pack('>I6', now) .. tail .. '\0' .. payload
end

-- The rank of the first member with this score that does not precede `prefix`. Members with equal
-- scores are in order of their bytes.
local function rank_from(zset, score, prefix)
  local low = redis.call('ZCOUNT', zset, '-inf', '(' .. score)
  local high = redis.call('ZCOUNT', zset, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if precedes(redis.call('ZRANGE', zset, middle, middle)[1], prefix) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- The member with this due time and member id, if it exists.
local function find_member(partition, due, member_id)
  local score = string.format('%.0f', due)
  local prefix = member_prefix(member_id)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', partition.timeout, score, score, 'LIMIT', 0, 2)) do
    if string.sub(member, 1, #prefix) == prefix then
      return member
    end
  end
  local at = rank_from(partition.timeout, score, prefix)
  local member = redis.call('ZRANGE', partition.timeout, at, at)[1]
  if member and string.sub(member, 1, #prefix) == prefix then
    return member
  end
  return nil
end

-- The length of the order list. With visibility `hidden` nothing is written there, so a key of another
-- type counts as empty.
local function order_length(partition)
  if VISIBILITY ~= 'hidden' then
    return redis.call('LLEN', partition.order)
  end
  local length = redis.pcall('LLEN', partition.order)
  return type(length) == 'number' and length or 0
end

-- Most members that this call removes. With visibility `exact` each removal searches the order list,
-- about 55 ns for every second entry, and a call should end within 5 ms.
local function max_per_call(partition)
  if VISIBILITY ~= 'exact' then
    return MAX_REMOVED
  end
  return math.max(1, math.min(MAX_REMOVED, math.floor(180000 / (order_length(partition) + 1))))
end

-- Quarantines a member that is packed in neither format: it would break Java's transfer script.
local function quarantine_member(partition, member, score)
  local length = order_length(partition)
  quarantine(partition, member, score)
  redis.call('ZREM', partition.timeout, member)
  if length > 0 then
    redis.call('LREM', partition.order, 1, member)
  end
end

local function pack_entry(due, handle, header)
  return struct.pack('>i8', due) .. handle .. header
end

-- Whether an index entry with this handle and header belongs to this member id. For member ids of 15
-- bytes it is enough to compare what both contain unchanged: 40 random bits and the tail.
local function belongs_to(member_id, handle, header)
  if #member_id == 15 then
    return string.sub(member_id, 7, 11) == string.sub(handle, 8, 12)
      and string.sub(member_id, 14) == id_tail(header)
  end
  return member_id_of(join_id(handle, id_tail(header))) == member_id
end

-- Handle and header of an index entry; nil if there is none, or it is malformed or of another job.
local function read_entry(member_id, raw)
  if not raw or #raw < 8 + HANDLE_BYTES + RECORD_BYTES then
    return nil
  end
  local handle, header = string.sub(raw, 9, 22), string.sub(raw, 23)
  -- Most headers have neither key, limit nor headers, so their length is known.
  if #header ~= RECORD_BYTES or string.byte(header, RECORD_BYTES) % 8 > 0 then
    local readable, length = pcall(prefix_length, string.sub(header, 7))
    if not readable or length ~= #header - 6 then
      return nil
    end
  end
  if not belongs_to(member_id, handle, header) then
    return nil
  end
  return handle, header
end

-- An index entry as a table; nil in the same cases.
local function unpack_entry(member_id, raw)
  local handle, header = read_entry(member_id, raw)
  return handle and {
    due = struct.unpack('>i8', raw), handle = handle, header = header, member_id = member_id,
  }
end

-- Removes a job from the index, and its key with it.
local function remove_entry(partition, entry)
  redis.call('HDEL', partition.index, entry.member_id)
  local key = record_key(entry.header)
  if key ~= '' and redis.call('HGET', partition.key, key) == entry.handle .. id_tail(entry.header) then
    redis.call('HDEL', partition.key, key)
  end
end

-- The index entry of a waiting job, with its member and payload. Nil, and the entry is removed, if the
-- member is gone.
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

-- Finds a job by 'i', handle and tail, or by 'k' and key: the handle of a native job, or nil and the
-- index entry of a waiting one.
local function find_job(partition, target)
  local rest = string.sub(target, 2)
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

-- Removes members from Java's order list, or counts them as garbage there, which sweep_order removes.
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

-- Sweeps Java's order list once a tenth of it is garbage: takes entries from its front and appends those
-- that still wait. It takes ten for each member that was just removed, so that the sweep keeps up, but
-- no more bytes than a call may move if all have the size of those members.
local function sweep_order(partition, removed)
  local garbage = tonumber(redis.call('HGET', partition.meta, 'garbage') or 0) or 0
  local length = order_length(partition)
  if garbage <= 0 or garbage * 10 < length then
    return
  end
  local bytes = 1
  for _, member in ipairs(removed) do
    bytes = math.max(bytes, #member)
  end
  local most = math.max(1, math.min(10 * #removed, math.floor(MOST_BYTES / bytes)))
  if length == 0 then
    redis.call('HDEL', partition.meta, 'garbage')
    return
  end
  local members = redis.call('LPOP', partition.order, most)
  local scores = redis.call('ZMSCORE', partition.timeout, unpack(members))
  local kept = {}
  for i, member in ipairs(members) do
    if scores[i] then
      kept[#kept + 1] = member
    end
  end
  if #kept > 0 then
    redis.call('RPUSH', partition.order, unpack(kept))
  end
  local left = garbage - (#members - #kept)
  if left > 0 then
    redis.call('HSET', partition.meta, 'garbage', string.format('%.0f', left))
  else
    redis.call('HDEL', partition.meta, 'garbage')
  end
end

-- Removes some index entries of jobs that Java took. There are some if the index has more entries than
-- the sorted set has members.
local SWEPT_ENTRIES = 20

local function sweep_index(partition)
  if redis.call('HLEN', partition.index) <= redis.call('ZCARD', partition.timeout) then
    return
  end
  local cursor = redis.call('HGET', partition.meta, 'sweep') or '0'
  if #cursor > 19 or string.find(cursor, '%D') or cursor == '' then
    cursor = '0'
  end
  local found = redis.call('HSCAN', partition.index, cursor, 'COUNT', SWEPT_ENTRIES)
  redis.call('HSET', partition.meta, 'sweep', found[1])
  for i = 1, #found[2], 2 do
    local entry = unpack_entry(found[2][i], found[2][i + 1])
    if not entry then
      redis.call('HDEL', partition.index, found[2][i])
    elseif entry.due < now and not find_member(partition, entry.due, entry.member_id) then
      remove_entry(partition, entry)
    end
  end
end

-- Whether a live job has this key. Shadows the function of prelude.lua, which does not know members.
local function key_is_live(partition, key)
  local handle, entry = find_job(redisson_partition_at(0), 'k' .. key)
  return handle or entry
end
