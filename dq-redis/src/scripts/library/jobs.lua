-- The parts of a job, which keys.lua describes: records and states. How a job is found and deleted.
-- Totals.

-- A longer record sets `large` in `meta`: later claims there add up the sizes of records before they
-- read them, which takes more commands. (See args.rs.)
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

-- Nil if there is no state, or it is too short.
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

-- The record has a key.
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
  local at = flags % 2 == 1 and 11 + (length or 0) or 10
  return #record >= at + 3 and struct.unpack('>I4', record, at) or 0
end

-- Whether the id of a job is to be pinned, by its record. Such a job has a state from the beginning.
local function is_to_be_pinned(record)
  return string.byte(record, 9) % 16 >= 8
end

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

-- Clients write the accepted time into records, by their estimate of the server's time (see
-- clock.rs). An estimate in the future, or behind by more than this many milliseconds, is
-- corrected.
local MAX_CLOCK_LAG = 1000

-- Replaces the accepted time of records[from … to] unless the client's estimate is good enough.
local function correct_accepted(records, from, to, estimate)
  if estimate > now or estimate < now - MAX_CLOCK_LAG then
    local accepted = struct.pack('>I6', now)
    for at = from, to do
      records[at] = accepted .. string.sub(records[at], 7)
    end
  end
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

-- Gives a waiting job another due time, which is also its first one.
local function set_due(partition, handle, due)
  local state = unpack_state(redis.call('HGET', partition.state, handle))
  redis.call('ZADD', partition.due, due, handle)
  if state and state.postponed ~= 0 then
    state.postponed = 0
    redis.call('HSET', partition.state, handle, pack_state(state))
  end
end

-- Fails, before anything is written, if a Redis key that the end of a waiting job writes has another
-- type.
local function check_types_of_job(partition)
  redis.call('ZCARD', partition.unpin)
  for _, hash in ipairs({ partition.state, partition.key, partition.pin }) do
    redis.call('HSTRLEN', hash, '')
  end
end

-- Whether a live (waiting or leased) job has this key.
local function key_is_live(partition, key)
  return redis.call('HSTRLEN', partition.key, key) > 0
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

-- The handle of a job given as 'i' and handle and tail, or as 'k' and a key. Nil if there is no
-- such job. The version of Redisson's queues has a second result: see redisson/java.lua.
local function find_job(partition, target)
  local rest = string.sub(target, 2)
  if string.byte(target) == string.byte('k') then
    local holder = redis.call('HGET', partition.key, rest)
    return holder and redis.call('HSTRLEN', partition.job, holder) > 0 and holder or nil
  end
  local handle = string.sub(rest, 1, HANDLE_BYTES)
  local record = redis.call('HGET', partition.job, handle)
  if record and id_tail(record) == string.sub(rest, HANDLE_BYTES + 1) then
    return handle
  end
  return nil
end
