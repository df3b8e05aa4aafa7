-- The parts of a job, which keys.lua describes: records and states; how a job is deleted; and totals.

-- A longer record sets `large` in `meta`: later claims there add up the sizes of records before they
-- read them, which takes more commands. (See key_layout.rs, which has the same number.)
local LARGE_RECORD = 8192

local HANDLE_BYTES = 14
-- Bytes of the shortest record: accepted time, tail, and flags, which are its last byte.
local RECORD_BYTES = 9
-- The numbers of a state: token, due time, attempts, deliveries, losses, milliseconds postponed.
local NUMBERS = '>I8i8I4I4I4i8'
local NUMBERS_BYTES = 36
-- Bytes of the shortest note: without key, name of the holder and error.
local NOTE_BYTES = 27
-- Bytes of the shortest state, of which the last one is the length of the key.
local STATE_BYTES = NUMBERS_BYTES + NOTE_BYTES
local NO_TIME = string.rep('\0', 6)

-- The fields of a stored state. Nil if there is no state, or it is too short.
local function unpack_state(stored)
  local key_length = stored and string.byte(stored, STATE_BYTES)
  if not key_length or #stored < STATE_BYTES + key_length then
    return nil
  end
  local token, due, attempts, deliveries, losses, postponed = struct.unpack(NUMBERS, stored)
  return {
    token = token, due = due, attempts = attempts, deliveries = deliveries, losses = losses,
    postponed = postponed, key = string.sub(stored, STATE_BYTES + 1, STATE_BYTES + key_length),
    note = string.sub(stored, NUMBERS_BYTES + 1),
  }
end

local function pack_state(state)
  return struct.pack(
    NUMBERS, state.token, state.due, state.attempts, state.deliveries, state.losses, state.postponed)
    .. state.note
end

-- The key in a record; empty if it has none, or if the record is missing or too short.
local function record_key(record)
  if not record or #record < RECORD_BYTES then
    return ''
  end
  local flags, length = string.byte(record, 9, 10)
  if flags % 2 == 0 then
    return ''
  end
  return string.sub(record, 11, 10 + (length or 0))
end

-- The note of a job that was never leased. `key` is '' if it has none. Its id is to be pinned for
-- `remember` milliseconds, or not at all if that is 0.
local function first_note(remember, key)
  return NO_TIME .. struct.pack('>I6', remember) .. string.rep('\0', 14) .. string.char(#key) .. key
end

-- The fields of the state of a job that was never leased, or whose state cannot be read.
local function fresh_state(record, due)
  local key = record_key(record)
  return {
    token = 0, due = due, attempts = 0, deliveries = 0, losses = 0, postponed = 0, key = key,
    note = first_note(0, key),
  }
end

-- The stored state of a job that was never leased: see first_note.
local function first_state(remember, key)
  return string.rep('\0', NUMBERS_BYTES) .. first_note(remember, key)
end

-- The length of the record prefix, for a record without its first 6 bytes (and not counting them).
local function prefix_length(record)
  local flags = string.byte(record, 3)
  local length = 3
  if flags % 2 == 1 then
    length = length + 1 + string.byte(record, length + 1)
  end
  if flags % 4 >= 2 then
    length = length + 4
  end
  if flags % 8 >= 4 then
    length = length + 4 + struct.unpack('>I4', record, length + 1)
  end
  return length
end

-- The last two bytes of the job's id, from its record.
local function id_tail(record)
  return string.sub(record, 7, 8)
end

-- A record without its key, which it has.
local function without_key(record)
  local flags, length = string.byte(record, 9, 10)
  return string.sub(record, 1, 8) .. string.char(flags - 1) .. string.sub(record, 11 + length)
end

-- The limit of attempts in a record; 0 if it has none, or is too short.
local function record_limit(record)
  local flags, length = string.byte(record, 9, 10)
  if flags % 4 < 2 then
    return 0
  end
  local limit_at = flags % 2 == 1 and 11 + (length or 0) or 10
  return #record >= limit_at + 3 and struct.unpack('>I4', record, limit_at) or 0
end

-- Whether the id of a job is to be pinned, by its record. Such a job has a state before its first
-- lease, too.
local function is_to_be_pinned(record)
  return string.byte(record, 9) % 16 >= 8
end

-- A note with the fields that are copied from the record.
local function fill_note(note, record)
  return string.sub(note, 1, 12) .. struct.pack('>I4', record_limit(record))
    .. string.sub(record, 1, 8) .. string.sub(note, 25)
end

-- A note with another error; `error` is nil to remove it.
local function note_with_error(note, error)
  local name_length, key_length = string.byte(note, 26, 27)
  return string.sub(note, 1, 24) .. (error and '\1' or '\0')
    .. string.sub(note, 26, NOTE_BYTES + key_length + name_length) .. (error or '')
end

local function note_without_key(note)
  return string.sub(note, 1, 26) .. '\0'
    .. string.sub(note, NOTE_BYTES + 1 + string.byte(note, NOTE_BYTES))
end

-- Deletes the record, the state and the key ('' for none) of a job. The caller removes the handle
-- from `due`, `lease` or `dead`.
local function delete_job(partition, handle, key)
  redis.call('HDEL', partition.job, handle)
  redis.call('HDEL', partition.state, handle)
  if key ~= '' then
    redis.call('HDEL', partition.key, key)
  end
end

-- Checks the Redis keys that the end of a waiting job writes. Fails before anything is written if one
-- has another type.
local function check_types_of_job(partition)
  redis.call('ZCARD', partition.unpin)
  for _, hash in ipairs({ partition.state, partition.key, partition.pin }) do
    redis.call('HSTRLEN', hash, '')
  end
  if has_groups(partition) then
    redis.call('ZCARD', partition.groups)
    redis.call('ZCARD', partition.parked)
  end
end

-- Adds a number to a total in `meta`, and returns the new total. For 0 it does nothing and returns nil.
local function add_total(partition, name, number)
  if number > 0 then
    local added = redis.pcall('HINCRBY', partition.meta, name, number)
    local message = type(added) == 'table' and added.err
    -- Redis has no codes for these two errors.
    if message
      and (string.find(message, 'not an integer', 1, true) or string.find(message, 'overflow', 1, true))
    then
      -- Another program has written the field: the total starts again.
      redis.call('HSET', partition.meta, name, number)
      return number
    elseif message then
      -- Again without pcall: that raises the server's own error in every version of Redis.
      return redis.call('HINCRBY', partition.meta, name, number)
    end
    return added
  end
end

