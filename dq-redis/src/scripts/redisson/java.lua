-- Follows prelude.lua in the scripts of the Redisson layout: Java's keys and members, and where the
-- jobs that this framework put among them stand.
--
-- A waiting job is a member of Java's sorted set; the native structures hold only what Java has no
-- place for: leases, retries, dead jobs. From its first lease on a job is native.
--
-- A job that has to be found by id or key is noted in `outside`, under its mark (its id as it stands
-- in the member): 8 bytes due time, the handle, and the record without the payload. Java may take
-- such a job without a word, so a note is believed only if the member is there.

KEYS_PER_PARTITION = 13

local function java_at(n)
  local partition = partition_at(n, KEYS_PER_PARTITION)
  partition.timeout, partition.order = KEYS[partition.first + 10], KEYS[partition.first + 11]
  partition.target, partition.outside = KEYS[partition.first + 12], KEYS[partition.first + 13]
  return partition
end

local JAVA = 'redisson'
-- So many members or payloads are read before their sizes are looked at (by a claim twice as many,
-- if those before were small).
local FEW = 8
-- No call moves more bytes, unless one payload alone has them.
local MOST_BYTES = 1048576
local LENGTH = struct.size('L')

-- Handle and tail to an id, and back.
local function fold(id)
  local c, d, e, f = string.byte(id, 13, 16)
  return string.sub(id, 1, 12) .. string.char(bit.bxor(c, e), bit.bxor(d, f)), string.sub(id, 15)
end

local function unfold(handle, tail)
  local c, d = string.byte(handle, 13, 14)
  local e, f = string.byte(tail, 1, 2)
  return string.sub(handle, 1, 12) .. string.char(bit.bxor(c, e), bit.bxor(d, f)) .. tail
end

-- An id as it stands in a member, and back: see redisson/member.rs.
local function mark_of(id)
  if string.sub(id, 9) == JAVA then
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

local function id_of(mark)
  if #mark == 15 then
    local head = struct.unpack('>I6', mark)
    return struct.pack('>I6', math.floor(head / 16))
      .. string.char(112 + head % 16) .. string.sub(mark, 7)
  elseif #mark == 8 then
    return mark .. JAVA
  end
  return string.sub(mark .. string.rep('\0', 16), 1, 16)
end

-- Handle and tail of the id that stands in a member as this mark. For the marks that most have in one
-- go.
local function name_of(mark)
  if #mark ~= 15 then
    return fold(id_of(mark))
  end
  local head = struct.unpack('>I6', mark)
  local c, d, e, f = string.byte(mark, 12, 15)
  return struct.pack('>I6', math.floor(head / 16)) .. string.char(112 + head % 16)
      .. string.sub(mark, 7, 11) .. string.char(bit.bxor(c, e), bit.bxor(d, f)),
    string.sub(mark, 14)
end

local function front_of(mark)
  if FORMAT == 'legacy' then
    return mark
  end
  return string.char(#mark) .. mark
end

-- Packed lengths: the payloads of one call are often of one.
local lengths = {}

local function pack_member(mark, payload)
  local size = #payload
  local length = lengths[size]
  if not length then
    length = struct.pack('L', size)
    lengths[size] = length
  end
  if FORMAT == 'legacy' then
    return mark .. length .. payload
  end
  return string.char(#mark) .. mark .. length .. payload
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

-- Format, mark and payload of a member; nil if it is packed in neither format.
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

-- The format of a queue that does not have ours. Java clients stumble over members of another
-- format, so none is ever put beside them.
local function foreign_format(partition)
  for _, at in ipairs({ '0', '-1' }) do
    local member = redis.call('ZRANGE', partition.timeout, at, at)[1]
    local format = member and parse(member)
    if format and format ~= FORMAT then
      return format
    end
  end
  return nil
end

-- The record of a job that Java made.
local function plain_record(tail, payload)
  return struct.pack('>I6', now) .. tail .. '\0' .. payload
end

-- The place of the first entry of this score from `front` on. Equal scores are in order of bytes.
local function place_from(zset, score, front)
  local low = redis.call('ZCOUNT', zset, '-inf', '(' .. score)
  local high = redis.call('ZCOUNT', zset, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if precedes(redis.call('ZRANGE', zset, middle, middle)[1], front) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- The member with this mark, if it is there.
local function member_at(partition, due, mark)
  local score = string.format('%.0f', due)
  local front = front_of(mark)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', partition.timeout, score, score, 'LIMIT', 0, 2)) do
    if string.sub(member, 1, #front) == front then
      return member
    end
  end
  local at = place_from(partition.timeout, score, front)
  local member = redis.call('ZRANGE', partition.timeout, at, at)[1]
  if member and string.sub(member, 1, #front) == front then
    return member
  end
  return nil
end

-- The order list's length. Where it is not written, one that is no list is not looked at further.
local function order_length(partition)
  if ORDER ~= 'off' then
    return redis.call('LLEN', partition.order)
  end
  local length = redis.pcall('LLEN', partition.order)
  return type(length) == 'number' and length or 0
end

-- How many members may leave the order list in one call: with `strict` each costs a walk through it,
-- about 55 ns for every second entry, and a call is to end within 5 ms.
local function at_once(partition)
  if ORDER ~= 'strict' then
    return MAX_EXPIRED
  end
  return math.max(1, math.min(MAX_EXPIRED, math.floor(180000 / (order_length(partition) + 1))))
end

-- Puts a member that is packed in neither format aside, where Java stumbles over it no more.
local function stray_member(partition, member, score)
  local length = order_length(partition)
  quarantine(partition, member, score)
  redis.call('ZREM', partition.timeout, member)
  if length > 0 then
    redis.call('LREM', partition.order, 1, member)
  end
end

local function pack_note(due, handle, header)
  return struct.pack('>i8', due) .. handle .. header
end

-- Whether a note with this handle and header may stand under this mark. For the marks that most have
-- it is enough to look at what the two have as it is: 40 random bits and the end.
local function stands_under(mark, handle, header)
  if #mark == 15 then
    return string.sub(mark, 7, 11) == string.sub(handle, 8, 12)
      and string.sub(mark, 14) == record_tail(header)
  end
  return mark_of(unfold(handle, record_tail(header))) == mark
end

-- Handle and header that are noted under a mark; nil if there is nothing, or something that is no
-- note of it.
local function read_note(mark, raw)
  if not raw or #raw < 8 + HANDLE_BYTES + RECORD_BYTES then
    return nil
  end
  local handle, header = string.sub(raw, 9, 22), string.sub(raw, 23)
  -- Most have nothing but an id.
  if #header ~= RECORD_BYTES or string.byte(header, RECORD_BYTES) % 8 > 0 then
    local sound, length = pcall(header_length, string.sub(header, 7))
    if not sound or length ~= #header - 6 then
      return nil
    end
  end
  if not stands_under(mark, handle, header) then
    return nil
  end
  return handle, header
end

-- What is noted under a mark, in the same way.
local function unpack_note(mark, raw)
  local handle, header = read_note(mark, raw)
  return handle and {
    due = struct.unpack('>i8', raw), handle = handle, header = header, mark = mark,
  }
end

-- Forgets what is noted about a job that is outside no more.
local function forget(partition, note)
  redis.call('HDEL', partition.outside, note.mark)
  local key = record_key(note.header)
  if key ~= '' and redis.call('HGET', partition.key, key) == note.handle .. record_tail(note.header) then
    redis.call('HDEL', partition.key, key)
  end
end

-- What is noted about a waiting job, with its member and payload; nil if it does not wait, and then
-- the note goes.
local function noted(partition, mark)
  local note = unpack_note(mark, redis.call('HGET', partition.outside, mark))
  if not note then
    return nil
  end
  note.member = member_at(partition, note.due, mark)
  if not note.member then
    forget(partition, note)
    return nil
  end
  local _, _, payload = parse(note.member)
  note.payload = payload
  return payload and note
end

-- The job that is meant: its handle if it is native, else what is noted about it.
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
  if record and record_tail(record) == tail then
    return handle, nil
  end
  return nil, noted(partition, mark_of(unfold(handle, tail)))
end

-- Takes members out of Java's order list, or notes that they have become garbage there.
local function leave_order(partition, members, marks)
  local garbage = 0
  for i, member in ipairs(members) do
    if ORDER == 'strict' then
      redis.call('LREM', partition.order, 1, member)
    elseif ORDER == 'lazy' or #marks[i] == 8 then
      garbage = garbage + 1
    end
  end
  add_total(partition, 'garbage', garbage)
end

-- Sweeps garbage out of Java's order list once it is a tenth of it: takes some from the front and
-- puts those that wait still at the end. So many as keep up with those that have just left, but not
-- more bytes than a call may move if all are of that size.
local function sweep_order(partition, left_now)
  local garbage = tonumber(redis.call('HGET', partition.meta, 'garbage') or 0) or 0
  local length = order_length(partition)
  if garbage <= 0 or garbage * 10 < length then
    return
  end
  local bytes = 1
  for _, member in ipairs(left_now) do
    bytes = math.max(bytes, #member)
  end
  local most = math.max(1, math.min(10 * #left_now, math.floor(MOST_BYTES / bytes)))
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

-- Forgets notes of jobs that Java took, some at a time; there are some if notes outnumber members.
local NOTES = 20

local function sweep_notes(partition)
  if redis.call('HLEN', partition.outside) <= redis.call('ZCARD', partition.timeout) then
    return
  end
  local cursor = redis.call('HGET', partition.meta, 'sweep') or '0'
  if #cursor > 19 or string.find(cursor, '%D') or cursor == '' then
    cursor = '0'
  end
  local found = redis.call('HSCAN', partition.outside, cursor, 'COUNT', NOTES)
  redis.call('HSET', partition.meta, 'sweep', found[1])
  for i = 1, #found[2], 2 do
    local note = unpack_note(found[2][i], found[2][i + 1])
    if not note then
      redis.call('HDEL', partition.outside, found[2][i])
    elseif note.due < now and not member_at(partition, note.due, note.mark) then
      forget(partition, note)
    end
  end
end

-- Due members, oldest first, no more than a call may move.
local function due_members(partition, most)
  local members, bytes = {}, 0
  while #members < most and bytes <= MOST_BYTES do
    local few = math.min(most - #members, FEW)
    local some =
      redis.call('ZRANGEBYSCORE', partition.timeout, '-inf', now, 'LIMIT', #members, few)
    for _, member in ipairs(some) do
      members[#members + 1] = member
      bytes = bytes + #member
    end
    if #some < few then
      break
    end
  end
  return members
end

-- Moves due members to the target list, as Java's clients do.
local function transfer(partition, most)
  local members = due_members(partition, math.min(most, at_once(partition)))
  if #members == 0 then
    return 0
  end
  local payloads, gone, marks = {}, {}, {}
  for _, member in ipairs(members) do
    local format, mark, payload = parse(member)
    if format then
      payloads[#payloads + 1], gone[#gone + 1], marks[#marks + 1] = payload, member, mark
    else
      stray_member(partition, member, now)
    end
  end
  if #gone > 0 then
    -- All keys are known to be what they should before anything is removed.
    redis.call('LLEN', partition.target)
    redis.call('HSTRLEN', partition.meta, '')
    order_length(partition)
    redis.call('ZREM', partition.timeout, unpack(gone))
    redis.call('RPUSH', partition.target, unpack(payloads))
    leave_order(partition, gone, marks)
    sweep_order(partition, gone)
  end
  return #members
end

-- Whether a live job has this key. (Shadows that of prelude.lua, which believes what is written.)
local function key_is_live(partition, key)
  local handle, note = find_job(java_at(0), 'k' .. key)
  return handle or note
end
