-- Members: their ids, how they are packed and parsed, and how they are found. keys.lua has the words.

-- Second half of the job id of a job that Java scheduled. The first half is its member id of 8
-- bytes.
local JAVA_SUFFIX = 'redisson'
-- Size of the length in a member, which Redisson packs as the server's `unsigned long`.
local LENGTH_BYTES = struct.size('L')

-- A job id as handle and tail, and back: see handle.rs.
local function split_id(id)
  local byte13, byte14, tail1, tail2 = string.byte(id, 13, 16)
  local combined = string.char(bit.bxor(byte13, tail1), bit.bxor(byte14, tail2))
  return string.sub(id, 1, 12) .. combined, string.sub(id, 15)
end

local function join_id(handle, tail)
  local byte13, byte14 = string.byte(handle, 13, 14)
  local tail1, tail2 = string.byte(tail, 1, 2)
  local separated = string.char(bit.bxor(byte13, tail1), bit.bxor(byte14, tail2))
  return string.sub(handle, 1, 12) .. separated .. tail
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

-- Handle and tail of a member id. Those of 15 bytes, the usual ones, are converted without building
-- the job id.
local function handle_and_tail(member_id)
  if #member_id ~= 15 then
    return split_id(job_id_of(member_id))
  end
  local head = struct.unpack('>I6', member_id)
  local byte13, byte14, tail1, tail2 = string.byte(member_id, 12, 15)
  return struct.pack('>I6', math.floor(head / 16)) .. string.char(112 + head % 16)
      .. string.sub(member_id, 7, 11)
      .. string.char(bit.bxor(byte13, tail1), bit.bxor(byte14, tail2)),
    string.sub(member_id, 14)
end

-- How the members with this id begin.
local function member_prefix(member_id)
  if FORMAT == 'legacy' then
    return member_id
  end
  return string.char(#member_id) .. member_id
end

-- Packed lengths by length: the payloads of one call often have the same length.
local packed_lengths = {}

-- A member: see `parse`.
local function pack_member(member_id, payload)
  local size = #payload
  local length = packed_lengths[size]
  if not length then
    length = struct.pack('L', size)
    packed_lengths[size] = length
  end
  return member_prefix(member_id) .. length .. payload
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

-- Parses a member as parse_as does, in the format of the settings if it fits, else in the other one: a
-- payload can be such that both fit.
local function parse(member)
  local format, member_id, payload = parse_as(FORMAT, member)
  if format then
    return format, member_id, payload
  end
  return parse_as(FORMAT == 'current' and 'legacy' or 'current', member)
end

-- Whether the queue holds members of the other format. The first and the last member show it:
-- members of two formats are never mixed, because they break the transfer script of Java clients.
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
