-- Begins every script: the server's time, the keys of a partition, the stored form of a job, and
-- expired leases.
--
-- A partition is a queue without shards, or one shard of a queue. A job is *waiting* (scheduled or
-- ready), *leased* or *dead*; it is *live* while it is waiting or leased. All times are
-- milliseconds since the Unix epoch, by the server's clock.
--
-- The keys of a partition, in the order of KEYS, as `{prefix}:name:queue` (see keys.rs):
--   due     sorted set  handle → due time: the waiting jobs
--   job     hash        handle → record: all jobs
--   state   hash        handle → packed state: the jobs that were leased or replayed before
--   lease   sorted set  handle → end of the lease: the leased jobs; and the marker of a closed
--                       partition
--   key     hash        key → handle: the live jobs that have a key
--   dead    sorted set  handle → time of death: the dead jobs
--   reason  hash        handle → reason of death (kind, zero byte, message): the dead jobs
--   meta    hash        settings `paused`, `large` (a record may be large), `token` (the last
--                       fencing token) and `layout` (see shards/layout.rs); totals `created`,
--                       `replaced`, `cancelled`, `removed`, `done` and `skipped`
--   stray   sorted set  entry → score or time: the quarantine
--
-- Quarantined is an entry of a sorted set that is no job, since it has no record or no handle's
-- length. Only another program can have written it. Scripts that meet one move it to the
-- quarantine, where the backend's `check` reports it, and go on.
--
-- Handle: the name of a job in these keys, 14 bytes. The id of a job has 16: its last two, the
-- tail, are in the record (see handle.rs). Scripts take and return an id as handle and tail in one
-- string.
--
-- Record: written once, and never changed.
--   6 bytes  when the job was accepted, big-endian (see clock.rs)
--   2 bytes  the tail of the id
--   1 byte   flags: 1 has a key, 2 has a limit of attempts, 4 has headers; plus 16 times its
--            conflict policy: 0 keep, 1 replace, 2 earliest, 3 latest
--   then, each only if its flag is set: length byte and key | 4 bytes limit | 4 bytes length and
--   headers
--   then     the payload
-- All that precedes the payload is the record prefix.
--
-- Packed state: rewritten when a lease begins or ends. 8 bytes fencing token (0 while not leased),
-- 8 bytes due time, 4 bytes each attempts, deliveries and losses, all big-endian; then the key, if
-- any.

-- Maximum number of expired leases that one call ends.
local MAX_EXPIRED, MAX_EXPIRED_TEXT = 100, '100'
local KEYS_PER_PARTITION = 9
-- Scores are doubles: times beyond this lose precision.
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
    due = KEYS[first + 1], job = KEYS[first + 2], state = KEYS[first + 3],
    lease = KEYS[first + 4], key = KEYS[first + 5], dead = KEYS[first + 6],
    reason = KEYS[first + 7], meta = KEYS[first + 8], quarantine = KEYS[first + 9],
    first = first,
  }
end

-- A packed state without the key: token, due time, attempts, deliveries, losses.
local STATE = '>I8i8I4I4I4'
local STATE_BYTES = 28
local HANDLE_BYTES = 14
-- Bytes of the shortest record: accepted time, tail, and flags, which are its last byte.
local RECORD_BYTES = 9

local function pack_state(state)
  return struct.pack(STATE, state.token, state.due, state.attempts, state.deliveries, state.losses)
    .. state.key
end

-- The fields of a packed state; nil if there is none, or it is too short.
local function unpack_state(raw)
  if not raw or #raw < STATE_BYTES then
    return nil
  end
  local token, due, attempts, deliveries, losses = struct.unpack(STATE, raw)
  return {
    token = token, due = due, attempts = attempts, deliveries = deliveries, losses = losses,
    key = string.sub(raw, STATE_BYTES + 1),
  }
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

-- Publishes the score of the first entry of a sorted set if it is one of these entries (score,
-- member, score, member, …), which have just been added: runners that wait for a later time wake
-- up.
local function publish_if_first(channel, zset, entries)
  if #entries == 0 then
    return
  end
  local first = redis.call('ZRANGE', zset, '0', '0')[1]
  -- From the end: if a member was added twice, the last score counts.
  for i = #entries, 2, -2 do
    if entries[i] == first then
      redis.call('PUBLISH', channel, entries[i - 1])
      return
    end
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

-- Rounds the score of an entry up to a whole number, since the cursors of listings are whole
-- numbers. Up, so that a listing that is under way does not skip the entry. Returns the new score,
-- or nil if the old one was a whole number.
local function round_score(zset, member, score)
  local old = tonumber(score)
  if old % 1 == 0 then
    return nil
  end
  local rounded = -score_time(-old)
  redis.call('ZREM', zset, member)
  redis.call('ZADD', zset, string.format('%.0f', rounded), member)
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
-- of the change, to `lease` with the score -inf. Every script reads expired leases first and so
-- sees the marker without a further command. It is longer than a handle, so it is never taken for a
-- job.
local CLOSED_PREFIX = 'closed by change '

local function is_closed_marker(member)
  return string.sub(member, 1, #CLOSED_PREFIX) == CLOSED_PREFIX
end

-- Ends at most MAX_EXPIRED expired leases: their jobs wait again, with one more loss. Every script
-- but shards.lua calls it first. Returns `stop, reply`:
--   false         the script continues
--   true, nil     MAX_EXPIRED leases were ended and there may be more: the script replies nil, and
--                 the client repeats the call, so that no single call runs long
--   true, CLOSED  the partition was closed by a change of the number of shards: the script replies
--                 with this status, and the client looks up the number of shards
local function requeue_expired(partition)
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
      redis.call('HSET', partition.state, handle, pack_state(state))
      -- NX: a job that is also in `due`, which only another program can cause, keeps its due time.
      redis.call('ZADD', partition.due, 'NX', state.due, handle)
    end
  end
  return #expired == MAX_EXPIRED
end

-- Two packed states of a job whose lease begins: before the lease ('' if there is none, or `raw`
-- cannot be read), and with the lease.
local function lease_state(raw, record, token, due)
  local state = raw and unpack_state(raw)
  if state then
    state.token, state.due, state.deliveries = token, due, state.deliveries + 1
    return raw, pack_state(state)
  end
  local packed = struct.pack(STATE, token, due, 0, 1, 0)
  if string.byte(record, 9) % 2 == 1 then
    packed = packed .. record_key(record)
  end
  return '', packed
end

-- Redis stores a small sorted set or hash as a list (listpack), and scans it for each entry. A
-- member or field of more than 64 bytes converts it to a table for good. With more leases than this
-- in one call, converting first is faster than scanning.
local MANY_LEASES = 16

-- Adds leases that end at the same time. `states` is handle, packed state, handle, packed state, …
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

-- Deletes the record, the state and the key ('' for none) of a job. The caller removes the handle
-- from `due`, `lease` or `dead`.
local function delete_job(partition, handle, key)
  redis.call('HDEL', partition.job, handle)
  redis.call('HDEL', partition.state, handle)
  if key ~= '' then
    redis.call('HDEL', partition.key, key)
  end
end

-- Whether a live (waiting or leased) job has this key.
local function key_is_live(partition, key)
  return redis.call('HSTRLEN', partition.key, key) > 0
end

-- Adds a number to a total in `meta`.
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
    elseif message then
      -- Repeated without pcall, which raises the server's own error in every version of Redis.
      redis.call('HINCRBY', partition.meta, name, number)
    end
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
