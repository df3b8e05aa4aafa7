-- Leases that begin, and those whose jobs lose their keys.

-- Returns a function that makes the stored state of a job for a lease that begins now. `holder` is the
-- name of who holds it.
local function leased_state_maker(holder)
  local pack, sub, byte = struct.pack, string.sub, string.byte
  local since, name = pack('>I6', now), string.char(#holder) .. holder
  -- Parts of the state of every job that has none yet, and is not to be pinned: attempts, deliveries
  -- and losses; no error and the name of the holder.
  local counts, last = pack('>I4I4I4', 0, 1, 0), '\0' .. name
  -- And of those that have neither a key nor a limit of attempts: between the due time and what is
  -- copied from the record.
  local middle = counts .. string.char(UNPINNED, 0) .. since .. NO_TIME .. string.rep('\0', 4)
  -- `stored` is the state before the lease, or false. Returns the packed state before the lease ('' if
  -- there is none), the stored state with the lease, and whether the hash `note` was read.
  return function(partition, handle, stored, record, token, due)
    local flags = byte(record, RECORD_BYTES)
    if not stored and flags % 16 < 8 then
      -- Most jobs: neither leased before nor to be pinned. The rest of the function would make the
      -- same state, in twice the time.
      local times, copied = pack('>I8i8', token, due), sub(record, 1, 8)
      if flags % 4 == 0 then
        return '', times .. middle .. copied .. last
      end
      local key, limit = record_key(record), pack('>I4', record_limit(record))
      return '', times .. counts .. string.char(UNPINNED, #key) .. key .. since .. NO_TIME .. limit
        .. copied .. last
    end
    local packed, note, was_apart = state_and_note(partition, handle, stored, record)
    local state = unpack_state(packed) or fresh_state(record, due)
    state.token, state.due, state.deliveries = token, due, state.deliveries + 1
    if #note < NOTE_BYTES then
      note = EMPTY_NOTE
    end
    -- After the name of the holder before.
    local error = sub(note, NOTE_BYTES + 1 + byte(note, NOTE_BYTES))
    state.note = since .. sub(note, 7, 12) .. pack('>I4', record_limit(record)) .. sub(record, 1, 8)
      .. sub(note, 25, 25) .. name .. error
    return packed, stored_state(state), was_apart
  end
end

-- Redis stores a small sorted set or hash as a list (listpack), and scans it for each entry. A
-- member or field of more than 64 bytes converts it to a table for good. With more leases than this
-- in one call, converting first is faster than scanning.
local MANY_LEASES = 16

-- Adds leases that end at the same time. `states` is handle, stored state, handle, stored state, …;
-- `apart` are the handles of those jobs whose notes were in the hash `note`. The caller has read
-- `partition.format`.
local function add_leases(partition, ends, states, apart)
  if not partition.format then
    raise_format(partition)
  end
  local score, leases = string.format('%.0f', ends), {}
  -- Converts both keys to tables; removed below.
  local long = #states > 2 * MANY_LEASES and string.rep('-', 65)
  if long then
    -- First, so that the leases are added to a table.
    leases[1], leases[2] = score, long
    redis.call('HSET', partition.state, long, '')
  end
  local n = #leases
  for i = 1, #states, 2 do
    leases[n + i], leases[n + i + 1] = score, states[i]
  end
  redis.call('ZADD', partition.lease, unpack(leases))
  redis.call('HSET', partition.state, unpack(states))
  if long then
    redis.call('ZREM', partition.lease, long)
    redis.call('HDEL', partition.state, long)
  end
  if #apart > 0 then
    redis.call('HDEL', partition.note, unpack(apart))
  end
end

-- Flag of a record: the job detaches a running job with its key. The highest flag, so `flags >= DETACH`
-- tests it.
local DETACH = 64

-- Takes the key from a leased job, for good. The caller gives the key to another job.
local function detach(partition, handle, record)
  local state = unpack_state(redis.call('HGET', partition.state, handle))
  state.key = ''
  redis.call('HSET', partition.job, handle, without_key(record))
  redis.call('HSET', partition.state, handle, stored_state(state))
end
