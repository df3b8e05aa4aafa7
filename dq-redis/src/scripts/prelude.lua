-- Begins every script on partitions: the server's time, the keys of a partition, the stored form of
-- a job, and expired leases.
--
-- A partition is a queue without shards, or one shard of a queue. A job is *waiting* (scheduled or
-- ready), *leased* or *dead*; it is *live* while it is waiting or leased. All times are
-- milliseconds since the Unix epoch, by the server's clock.
--
-- The keys of a partition, in the order of KEYS, as `{prefix}:name:queue` (see keys.rs):
--   due     sorted set  handle → due time: the waiting jobs
--   job     hash        handle → record: all jobs
--   state   hash        handle → stored state: the jobs that were leased or replayed before, and those
--                       whose ids are to be pinned
--   lease   sorted set  handle → end of the lease: the leased jobs; and the marker of a closed
--                       partition
--   key     hash        key → handle: the live jobs that have a key
--   dead    sorted set  handle → time of death: the dead jobs
--   reason  hash        handle → reason of death (kind, zero byte, message): the dead jobs
--   meta    hash        settings `paused`, `large` (a record may be large), `token` (the last
--                       fencing token: the server's microseconds, or one more than the token
--                       before if that is more, so that tokens grow even if the server has lost
--                       its last writes), `layout` (see shards/layout.rs), `pins` (see
--                       pins.rs) and `format` (see format.rs); totals `created`,
--                       `replaced`, `cancelled`, `removed`, `done` and `skipped`
--   stray   sorted set  entry → score or time: the quarantine
--   note    hash        handle → note: as of format 2, see below
--   ended   sorted set  handle → time of the end: the history, that is, jobs that have ended
--   past    hash        handle → past job: the history
--   unpin   sorted set  handle → end of the pin: the pinned ids
--   pin     hash        handle → pin: the pinned ids
-- Jobs in the history and pinned ids have none of the other entries. The last four keys expire, so
-- that they do not outlive their last entry by long.
--
-- Quarantined is an entry of a sorted set that is no job, since it has no record or is not as long
-- as a handle. Only another program can have written it. Scripts that meet one move it to the
-- quarantine, where the backend's `check` reports it, and go on. There are two exceptions: listings
-- of the history only remove one, since no job there is still to run, and a purge (clear.lua)
-- deletes one and counts it as a job.
--
-- Handle: the name of a job in these keys, 14 bytes. The id of a job has 16: its last two, the
-- tail, are in the record (see handle.rs). Scripts take and return an id as handle and tail in one
-- string.
--
-- Record: written once. Only a job that is detached from its key gets another one, and a job that
-- gets another payload.
--   6 bytes  when the job was accepted, big-endian (see clock.rs)
--   2 bytes  the tail of the id
--   1 byte   flags: 1 has a key, 2 has a limit of attempts, 4 has headers, 8 its id is to be pinned,
--            64 detaches a running job with its key; plus 16 times its conflict policy:
--            0 keep, 1 replace, 2 earliest, 3 latest
--   then, each only if its flag is set: length byte and key | 4 bytes limit | 4 bytes length and
--   headers
--   then     the payload
-- All that precedes the payload is the record prefix.
--
-- Stored state: rewritten when a lease begins or ends. 1 byte 2 if the id is to be pinned, else 1;
-- 1 byte length of the key, 0 without one; the packed state; the note. All numbers are big-endian.
--
-- Before format 3 it was the packed state alone, whose first byte is always 0. The note was in the hash
-- `note`, without a state if the job was not leased yet. One there counts only for such a state, or
-- for a job that has flag 8 and no state: it may have been left behind.
--
-- Packed state: 8 bytes fencing token (0 while not leased), 8 bytes due time (of the last lease),
-- 4 bytes each attempts, deliveries and losses; then the key, if any.
--
-- Note: what a job needs for operators and for its end besides record and packed state.
--   6 bytes  when the last lease began; 0 if there was none
--   6 bytes  for how long the id is pinned after the end of the job, in milliseconds
--   4 bytes  limit of attempts, or 0   \
--   8 bytes  the record's first ones   /  only after a lease: an end then reads no record
--   1 byte   1 if there is an error, else 0
--   then     length byte and name of the holder of the last lease; the error
--
-- Past job: a letter, 'D' done, 'S' skipped, 'C' cancelled, 'R' replaced or 'M' removed; 4 bytes
-- length and the packed state; 4 bytes length and the note; then why it was skipped, or the reason
-- of death of a removed one.
--
-- Pin: 8 bytes end of the pin, 2 bytes tail, 8 bytes due time.

-- Maximum number of expired leases that one call ends.
local MAX_EXPIRED, MAX_EXPIRED_TEXT = 100, '100'
local KEYS_PER_PARTITION = 14
local keys = KEYS
-- Scores and Lua's numbers are doubles, exact up to 2^53. A duration may still be added to a time.
local MAX_TIME = 2 ^ 52
local clock = redis.call('TIME')
local now_micros = clock[1] * 1000000 + clock[2]
local now = math.floor(now_micros / 1000)
-- Redis is slow at formatting Lua's numbers, so frequent commands get text, like '100' for 100.
local now_text = string.format('%.0f', now)

-- The partition number `n`, from 0, of those in KEYS: its keys by name, and the number of keys
-- before.
local function partition_at(n, keys_per_partition)
  local first = n * keys_per_partition
  return {
    due = keys[first + 1], job = keys[first + 2], state = keys[first + 3],
    lease = keys[first + 4], key = keys[first + 5], dead = keys[first + 6],
    reason = keys[first + 7], meta = keys[first + 8], quarantine = keys[first + 9],
    note = keys[first + 10], ended = keys[first + 11], past = keys[first + 12],
    unpin = keys[first + 13], pin = keys[first + 14], first = first,
  }
end

-- A record of more bytes marks the partition: later claims there add up the sizes of records before
-- they read them, which takes more commands. (See args.rs.)
local LARGE_RECORD = 8192

-- A packed state without the key: token, due time, attempts, deliveries, losses.
local STATE = '>I8i8I4I4I4'
local STATE_BYTES = 28
local MAX_KEY = 255
local HANDLE_BYTES = 14
-- Bytes of the shortest record: accepted time, tail, and flags, which are its last byte.
local RECORD_BYTES = 9

local function pack_state(state)
  return struct.pack(STATE, state.token, state.due, state.attempts, state.deliveries, state.losses)
    .. state.key
end

-- The first byte of a stored state with its note: for ids that are not to be pinned, and for others.
local UNPINNED, PINNED = 1, 2
-- Where the fencing token and the key begin in such a state.
local TOKEN_AT, KEY_AT = 3, 31

-- The packed state and the note in a stored state. The note is nil if it is not there, as before
-- format 3; both are nil if there is no state, or it is too short.
local function split_state(stored)
  if not stored or #stored < STATE_BYTES then
    return nil
  elseif string.byte(stored) < UNPINNED then
    return stored
  end
  local last = KEY_AT - 1 + string.byte(stored, 2)
  if #stored < last then
    return nil
  end
  return string.sub(stored, TOKEN_AT, last), string.sub(stored, last + 1)
end

-- The fields of a stored state; nil if there is none, or it is too short.
local function unpack_state(stored)
  local packed, note = split_state(stored)
  if not packed then
    return nil
  end
  local token, due, attempts, deliveries, losses = struct.unpack(STATE, packed)
  return {
    token = token, due = due, attempts = attempts, deliveries = deliveries, losses = losses,
    key = string.sub(packed, STATE_BYTES + 1, STATE_BYTES + MAX_KEY), note = note,
  }
end

local NO_TIME = string.rep('\0', 6)

-- A stored state with its note. `key_length` is that of the key in the packed state.
local function join_state(key_length, packed, note)
  local first = string.sub(note, 7, 12) == NO_TIME and UNPINNED or PINNED
  return string.char(first, key_length) .. packed .. note
end

-- What to store of a state: with its note, unless it was stored without.
local function stored_state(state)
  local packed = pack_state(state)
  return state.note and join_state(#state.key, packed, state.note) or packed
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

-- The state of a job that was never leased, or whose state cannot be read.
local function fresh_state(record, due)
  return {
    token = 0, due = due, attempts = 0, deliveries = 0, losses = 0, key = record_key(record),
  }
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

-- A record without its key; the record has one.
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

-- Whether the id of a job is to be pinned, by its record: it has a state from the beginning.
local function has_first_state(record)
  return string.byte(record, 9) % 16 >= 8
end

-- The packed state and the note of a job, by its stored state and its record; '' for each that it does
-- not have. Also returns whether the note was looked for in the hash `note`.
local function state_and_note(partition, handle, stored, record)
  local packed, note = split_state(stored)
  local is_apart = not note and (packed or #record >= RECORD_BYTES and has_first_state(record))
  if is_apart then
    note = redis.call('HGET', partition.note, handle)
  end
  return packed or '', note or '', is_apart
end

-- Bytes of a note without the name of the worker and the error.
local NOTE_BYTES = 26
local EMPTY_NOTE = string.rep('\0', NOTE_BYTES)

-- The first stored state of a job whose id is to be pinned for `remember` milliseconds. `key` is ''
-- if it has none.
local function first_state(remember, key)
  local note = NO_TIME .. struct.pack('>I6', remember) .. string.sub(EMPTY_NOTE, 13)
  return join_state(#key, string.rep('\0', STATE_BYTES) .. key, note)
end

-- A note with the fields that are copied from the record.
local function fill_note(note, record)
  return string.sub(note, 1, 12) .. struct.pack('>I4', record_limit(record))
    .. string.sub(record, 1, 8) .. string.sub(note, 25)
end

-- A note with another error; `error` is nil to remove it.
local function note_with_error(note, error)
  if #note < NOTE_BYTES then
    note = EMPTY_NOTE
  end
  local flag = error and '\1' or '\0'
  return string.sub(note, 1, 24) .. flag .. string.sub(note, 26, 26 + string.byte(note, 26))
    .. (error or '')
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

-- A due time as the text of a score. Clients send a time, or '+' and a delay in milliseconds. The
-- last delay is cached, since the jobs of one call often have the same one.
local PLUS = string.byte('+')
local last_delay, last_due
local function resolve_due(text)
  if string.byte(text) ~= PLUS then
    return text
  end
  if text ~= last_delay then
    last_delay, last_due = text, string.format('%.0f', now + tonumber(text))
  end
  return last_due
end

-- A score as a whole number of at most MAX_TIME. Other programs may have written any score.
local function score_time(score)
  local time = tonumber(score)
  if time > MAX_TIME or time < -MAX_TIME or time % 1 ~= 0 then
    time = math.max(-MAX_TIME, math.min(MAX_TIME, math.floor(time)))
  end
  return time
end

-- The lowest score of a sorted set; nil if the set is empty.
local function earliest(zset)
  local score = redis.call('ZRANGE', zset, '0', '0', 'WITHSCORES')[2]
  return score and score_time(score)
end

-- The score of the first entry of a sorted set if it is one of these entries (score, member, score,
-- member, …), which have just been added; else nil.
local function first_of(zset, entries)
  if #entries == 0 then
    return nil
  end
  local first = redis.call('ZRANGE', zset, '0', '0')[1]
  -- From the end: if a member was added twice, the last score counts.
  for i = #entries, 2, -2 do
    if entries[i] == first then
      return entries[i - 1]
    end
  end
  return nil
end

-- Publishes the time of the first entry of a sorted set if it is one of these entries, which have just
-- been added: runners that wait for a later time wake up. `partition` is for the version of Redisson's
-- queues, which replaces this one.
local function publish_if_first(channel, partition, zset, entries)
  local first = first_of(zset, entries)
  if first then
    redis.call('PUBLISH', channel, first)
  end
end

-- Moves an entry that is no job from `due`, if it is there, to the quarantine. Callers remove it
-- from `lease` or `dead`.
local function quarantine(partition, member, score)
  -- ZCARD fails before anything is written if the key has another type. ZREM precedes ZADD: on a
  -- server out of memory a script may continue once it has run a write that takes none.
  redis.call('ZCARD', partition.quarantine)
  redis.call('ZREM', partition.due, member)
  redis.call('ZADD', partition.quarantine, score, member)
end

-- Rounds the score of an entry up to a whole number and limits it to MAX_TIME, since the cursors of
-- listings are integers of 64 bits. Up, so that a listing in ascending order that is under way does not
-- skip the entry.
-- Returns the new score, or nil if the old one was such a number.
local function round_score(zset, member, score)
  local old = tonumber(score)
  if old % 1 == 0 and old <= MAX_TIME and old >= -MAX_TIME then
    return nil
  end
  local rounded = -score_time(-old)
  local members = { member }
  if old > MAX_TIME then
    -- Those beyond get one score, and so the order of their names: up to 1000 together, so that a listing
    -- that is under way skips none of them.
    local beyond = string.format('(%.0f', MAX_TIME)
    members = redis.call('ZRANGEBYSCORE', zset, beyond, '+inf', 'LIMIT', '0', '1000')
  end
  for _, entry in ipairs(members) do
    redis.call('ZREM', zset, entry)
    redis.call('ZADD', zset, string.format('%.0f', rounded), entry)
  end
  return rounded
end

-- Returns call(partition, ...). If a key of the partition has another type, sets
-- `partition.refusal` to the status reply WRONG_TYPE and returns nil, so that the call still serves
-- its other partitions. A partition that already has a refusal is skipped.
local function catch_wrong_type(call, partition, ...)
  if partition.refusal then
    return nil
  end
  local succeeded, reply = pcall(call, partition, ...)
  if succeeded then
    return reply
  end
  local message = type(reply) == 'table' and reply.err or tostring(reply)
  -- Redis has no other sign of a wrong type; before version 7 the code is not at the beginning.
  if not string.find(message, 'WRONGTYPE', 1, true) then
    error(reply, 0)
  end
  partition.refusal = redis.status_reply('WRONG_TYPE')
end

-- A change of the number of shards closes a partition: it adds a marker, this prefix and the number
-- of the change, to `lease` with the score -inf. Scripts read expired leases first and so see the
-- marker without a further command. It is longer than a handle, so it is never taken for a job.
local CLOSED_PREFIX = 'closed by change '

local function is_closed_marker(member)
  return string.sub(member, 1, #CLOSED_PREFIX) == CLOSED_PREFIX
end

-- The number of the format that this version writes: see format.rs.
local OWN_FORMAT = 3

-- The status reply FORMAT if the field `format` of `meta`, given as `stored`, says that this version
-- is too old for this kind of access, 'write' or 'read'; else nil. The field is absent unless a
-- later version has raised the format of the partition.
local function refuse_format(stored, access)
  if not stored then
    return nil
  end
  local write, read = string.match(stored, '^%d+/(%d+)/(%d+)$')
  local oldest = tonumber(access == 'write' and write or read)
  if oldest and oldest <= OWN_FORMAT then
    return nil
  end
  return redis.status_reply('FORMAT')
end

-- Refuses versions that cannot read states with notes: called before the first one is stored in the
-- partition. A later version may have raised the format further.
local function raise_format(partition)
  redis.call('HSETNX', partition.meta, 'format', '3/3/3')
end

-- Ends at most MAX_EXPIRED expired leases: their jobs wait again, with one more loss. Every script
-- that reads or changes jobs calls it first: all but shards.lua, pins.lua, inspect.lua and, of
-- `redisson`, locate.lua and transfer.lua. `access` is 'write' or 'read'; nil for calls of holders
-- of leases, which a raised format does not refuse, and for claims, which have read the format.
-- Returns `stop, reply`:
--   false         the script continues
--   true, nil     MAX_EXPIRED leases were ended and there may be more: the script replies nil, and
--                 the client repeats the call, so that no single call runs long (a claim goes on,
--                 and reports that it should be repeated)
--   true, CLOSED  the partition was closed by a change of the number of shards: the script replies
--                 with this status, and the client looks up the number of shards
--   true, FORMAT  this version is too old for the format of the partition
local function requeue_expired(partition, access)
  local refusal = access and refuse_format(redis.call('HGET', partition.meta, 'format'), access)
  if refusal then
    return true, refusal
  end
  local expired = redis.call(
    'ZRANGEBYSCORE', partition.lease, '-inf', now_text, 'LIMIT', '0', MAX_EXPIRED_TEXT)
  if #expired == 0 then
    return false
  end
  -- Everything is read before anything is written, so that a key of another type changes nothing.
  local states = redis.call('HMGET', partition.state, unpack(expired))
  local has_record = {}
  for i, handle in ipairs(expired) do
    -- HSTRLEN, not HGET: a record may be large, and is rarely needed.
    has_record[i] = redis.call('HSTRLEN', partition.job, handle) > 0
    if not has_record[i] and is_closed_marker(handle) then
      return true, redis.status_reply('CLOSED')
    end
  end
  redis.call('ZCARD', partition.due)
  redis.call('ZCARD', partition.quarantine)
  -- ZREM first, since it takes no memory: a server out of memory then allows the other writes.
  redis.call('ZREM', partition.lease, unpack(expired))
  for i, handle in ipairs(expired) do
    if not has_record[i] then
      quarantine(partition, handle, now)
    else
      local state = unpack_state(states[i])
        or fresh_state(redis.call('HGET', partition.job, handle), now)
      state.token = 0
      state.losses = state.losses + 1
      redis.call('HSET', partition.state, handle, stored_state(state))
      -- NX: a job that is also in `due`, which only another program can cause, keeps its due time.
      redis.call('ZADD', partition.due, 'NX', state.due, handle)
    end
  end
  return #expired == MAX_EXPIRED
end

-- Returns a function that makes the stored state of a job whose lease begins now, held by `worker`.
local function lease_maker(worker)
  local pack, sub, byte = struct.pack, string.sub, string.byte
  local since, holder = pack('>I6', now), string.char(#worker) .. worker
  -- The same for all jobs that have neither state nor pin, or of these the ones without key and limit of
  -- attempts.
  local counts, last = pack('>I4I4I4', 0, 1, 0), '\0' .. holder
  local first, middle = string.char(UNPINNED, 0), counts .. since .. NO_TIME .. string.rep('\0', 4)
  -- Returns the packed state before the lease ('' if there is none), the stored state with the lease, and
  -- whether there may be a note in the hash `note`. `stored` is the state before, or false.
  return function(partition, handle, stored, record, token, due)
    local flags = byte(record, RECORD_BYTES)
    if not stored and flags % 16 < 8 then
      local times, copied = pack('>I8i8', token, due), sub(record, 1, 8)
      if flags % 4 == 0 then
        return '', first .. times .. middle .. copied .. last
      end
      local key, limit = record_key(record), pack('>I4', record_limit(record))
      return '', string.char(UNPINNED, #key) .. times .. counts .. key .. since .. NO_TIME .. limit
        .. copied .. last
    end
    local packed, note, is_apart = state_and_note(partition, handle, stored, record)
    local state = unpack_state(packed) or fresh_state(record, due)
    state.token, state.due, state.deliveries = token, due, state.deliveries + 1
    if #note < NOTE_BYTES then
      note = EMPTY_NOTE
    end
    -- After the name of the last holder.
    local error = sub(note, NOTE_BYTES + 1 + byte(note, NOTE_BYTES))
    state.note = since .. sub(note, 7, 12) .. pack('>I4', record_limit(record)) .. sub(record, 1, 8)
      .. sub(note, 25, 25) .. holder .. error
    return packed, stored_state(state), is_apart
  end
end

-- Redis stores a small sorted set or hash as a list (listpack), and scans it for each entry. A
-- member or field of more than 64 bytes converts it to a table for good. With more leases than this
-- in one call, converting first is faster than scanning.
local MANY_LEASES = 16

-- Adds leases that end at the same time. `states` is handle, stored state, handle, stored state, …
local function add_leases(partition, ends, states)
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
end

-- Deletes the record, the state, the note and the key ('' for none) of a job. The caller removes
-- the handle from `due`, `lease` or `dead`.
local function delete_job(partition, handle, key)
  redis.call('HDEL', partition.job, handle)
  redis.call('HDEL', partition.state, handle)
  redis.call('HDEL', partition.note, handle)
  if key ~= '' then
    redis.call('HDEL', partition.key, key)
  end
end

-- Fails if a key of another type would stop the end of a waiting job half-way. Called before anything is
-- written.
local function check_keys_of_jobs(partition)
  redis.call('ZCARD', partition.unpin)
  for _, hash in ipairs({ partition.state, partition.note, partition.key, partition.pin }) do
    redis.call('HSTRLEN', hash, '')
  end
end

-- Whether a live (waiting or leased) job has this key.
local function key_is_live(partition, key)
  return redis.call('HSTRLEN', partition.key, key) > 0
end

-- Adds a number to a total in `meta`, and returns the new total. Adding 0 does and returns nothing.
local function add_total(partition, name, number)
  if number > 0 then
    local added = redis.pcall('HINCRBY', partition.meta, name, number)
    local message = type(added) == 'table' and added.err
    -- Redis has no error codes for these two.
    if message
      and (string.find(message, 'not an integer', 1, true) or string.find(message, 'overflow', 1, true))
    then
      -- Another program has written the field: the total starts again.
      redis.call('HSET', partition.meta, name, number)
      return number
    elseif message then
      -- Repeated without pcall, which raises the server's own error in every version of Redis.
      return redis.call('HINCRBY', partition.meta, name, number)
    end
    return added
  end
end

-- The handle of a job given as 'i' and handle and tail, or as 'k' and a key. Nil if there is no
-- such job.
local function find(partition, target)
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

-- Flag of a record: the job detaches a running job with its key. The highest flag.
local DETACH = 64

-- Takes the key from a leased job, for good. The caller gives the key to another job.
local function detach(partition, handle, record)
  local state = unpack_state(redis.call('HGET', partition.state, handle))
  state.key = ''
  redis.call('HSET', partition.job, handle, without_key(record))
  redis.call('HSET', partition.state, handle, stored_state(state))
end
