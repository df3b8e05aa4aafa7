-- Leases that begin, and those whose jobs lose their keys.

-- Returns a function that makes the state of a job for a lease that begins now. `holder` is the name
-- of who holds it.
local function leased_state_maker(holder)
  local pack, sub, byte, char = struct.pack, string.sub, string.byte, string.char
  local since = pack('>I6', now)
  -- Parts of the state of every job that has none yet: attempts, deliveries, losses, milliseconds
  -- postponed, begin of the lease and no pin; then no error, and the length of the name.
  local counts, no_error = pack('>I4I4I4i8', 0, 1, 0, 0) .. since .. NO_TIME, char(0, #holder)
  -- For jobs with neither a limit of attempts nor a key: what precedes and what follows the copy from
  -- the record.
  local middle, last = counts .. string.rep('\0', 4), no_error .. '\0' .. holder
  -- `stored` is the state before the lease, or false. Returns its numbers, or '' if there is no such
  -- state, and the state with the lease.
  return function(stored, record, token, due)
    local copied = sub(record, 1, 8)
    if not stored then
      -- This branch is for most jobs. The rest of the function would make the same state, in twice the
      -- time.
      local times = pack('>I8i8', token, due)
      if byte(record, RECORD_BYTES) % 4 == 0 then
        return '', times .. middle .. copied .. last
      end
      local key, limit = record_key(record), pack('>I4', record_limit(record))
      return '', times .. counts .. limit .. copied .. no_error .. char(#key) .. key .. holder
    end
    local state = unpack_state(stored)
    local before = state and sub(stored, 1, NUMBERS_BYTES) or ''
    state = state or fresh_state(record, due)
    state.token, state.due, state.deliveries = token, due, state.deliveries + 1
    local note, name_at = state.note, NOTE_BYTES + 1 + #state.key
    state.note = since .. sub(note, 7, 12) .. pack('>I4', record_limit(record)) .. copied
      .. sub(note, 25, 25) .. char(#holder, #state.key) .. state.key .. holder
      .. sub(note, name_at + byte(note, 26))
    return before, pack_state(state)
  end
end

-- Redis stores a small sorted set or hash as a list (listpack), and scans it for each entry. A
-- member or field of more than 64 bytes converts it to a table for good. With more leases than this
-- in one call, converting first is faster than scanning.
local MANY_LEASES = 16

-- Adds leases that end at the same time. `states` is handle, state, handle, state, ….
local function add_leases(partition, ends, states)
  local score, leases = string.format('%.0f', ends), {}
  -- Converts both keys to tables; removed below.
  local long = #states > 2 * MANY_LEASES and string.rep('-', 65)
  if long then
    -- The long member is the first one, so that the leases are added to a table.
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
end

-- The flag of a record whose job detaches a running job with its key. It is the highest flag, so
-- `flags >= DETACH` tests it.
local DETACH = 64

-- The due time of a stored job, and whether it is leased. A dead job is not leased, and has a state
-- with its last due time. Nil means that other programs have removed parts of the job, or that an
-- earlier call failed at ZADD.
local function due_and_leased(partition, handle)
  local due = redis.call('ZSCORE', partition.due, handle)
    or has_groups(partition) and redis.call('ZSCORE', partition.parked, handle)
  if due then
    return score_time(due), false
  end
  local state = unpack_state(redis.call('HGET', partition.state, handle))
  -- A job that was never leased has a state too if its id is to be pinned.
  if state and state.deliveries > 0 then
    return state.due, state.token ~= 0
  end
end

-- Takes the key from a leased job, for good. The caller gives the key to another job.
local function detach(partition, handle, record)
  local state = unpack_state(redis.call('HGET', partition.state, handle))
  state.note = note_without_key(state.note)
  redis.call('HSET', partition.job, handle, without_key(record))
  redis.call('HSET', partition.state, handle, pack_state(state))
end
