-- Begins every script: the server's time, the keys of a partition, records and states of jobs, and
-- expired leases.
--
-- A partition is a queue, or one shard of a queue. A job is kept under a handle of 14 bytes (see
-- handle.rs). Its record is written once:
--   6 bytes  when it was accepted, big-endian milliseconds (see clock.rs)
--   2 bytes  the end of its id, which the handle lacks
--   1 byte   flags: 1 a key, 2 a limit of attempts, 4 headers; 16 times its conflict policy
--   then     length byte and key | 4 bytes limit | 4 bytes length and headers | payload
-- Its state changes with each lease, and exists only for jobs that have been leased before.

local MAX_EXPIRED, MAX_EXPIRED_TEXT = 100, '100'
local KEYS_PER_PARTITION = 9
-- Times beyond this are not exact in a score.
local MAX_TIME = 2 ^ 52
local clock = redis.call('TIME')
local now_micros = clock[1] * 1000000 + clock[2]
local now = math.floor(now_micros / 1000)
-- Redis is slow at formatting Lua's numbers, so arguments of frequent commands are text.
local now_text = string.format('%.0f', now)

-- The keys of partition number `n`, from 0, among KEYS.
local function partition_at(n, keys_per_partition)
  local first = n * keys_per_partition
  return {
    due = KEYS[first + 1], job = KEYS[first + 2], state = KEYS[first + 3],
    lease = KEYS[first + 4], key = KEYS[first + 5], dead = KEYS[first + 6],
    reason = KEYS[first + 7], meta = KEYS[first + 8], quarantine = KEYS[first + 9],
    first = first,
  }
end

-- Token (0 when not leased), due time, attempts, deliveries, losses; then the key, if there is one.
local STATE = '>I8i8I4I4I4'
local STATE_BYTES = 28
local HANDLE_BYTES = 14
-- The shortest record: everything up to the flags.
local RECORD_BYTES = 9

local function pack_state(state)
  return struct.pack(STATE, state.token, state.due, state.attempts, state.deliveries, state.losses)
    .. state.key
end

-- Nil if there is no state, or one that is too short.
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

-- The number of bytes before the payload in a record without its time.
local function header_length(record)
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

local function record_tail(record)
  return string.sub(record, 7, 8)
end

-- The client writes the time of acceptance into the records, as far as it knows the server's time
-- (see clock.rs). A time in the future or more than this many milliseconds ago is replaced.
local MAX_CLOCK_LAG = 1000

local function correct_accepted(records, from, to, estimate)
  if estimate > now or estimate < now - MAX_CLOCK_LAG then
    local accepted = struct.pack('>I6', now)
    for at = from, to do
      records[at] = accepted .. string.sub(records[at], 7)
    end
  end
end

-- A due time as a score. Clients write a time, or '+' and a delay in milliseconds. The last delay is
-- kept, since the jobs of one call often have the same one.
local last_delay, last_due
local function resolve_due(text)
  if string.byte(text) ~= 43 then
    return text
  end
  if text ~= last_delay then
    last_delay, last_due = text, string.format('%.0f', now + tonumber(text))
  end
  return last_due
end

-- A score as a whole number within MAX_TIME. Other programs may have written any score.
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

-- Wakes listeners if one of these entries (score, member, score, member, ...), which have just been
-- added to a set, is its first one.
local function publish_if_first(channel, zset, entries)
  if #entries == 0 then
    return
  end
  local first = redis.call('ZRANGE', zset, '0', '0')[1]
  -- From the end: of a member that was added twice, the last score holds.
  for i = #entries, 2, -2 do
    if entries[i] == first then
      redis.call('PUBLISH', channel, entries[i - 1])
      return
    end
  end
end

-- Moves a foreign entry of `due` to where operators find it.
local function quarantine(partition, member, score)
  -- Fails before anything is written if the key has another type. Removing comes before adding: on a
  -- full server a script may go on once it has written without taking memory.
  redis.call('ZCARD', partition.quarantine)
  redis.call('ZREM', partition.due, member)
  redis.call('ZADD', partition.quarantine, score, member)
end

-- Gives an entry a whole number as its score, since cursors of listings hold whole numbers. Rounded up,
-- so that the entry does not move behind the cursor of a listing that is under way. Returns the new
-- score, or nil if the old one is a whole number.
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

-- Calls a function on a partition. If a key of the partition has another type, sets `refusal` and
-- returns nil, so that the other partitions of the call are served. A partition with a refusal is skipped.
local function catch_wrong_type(call, partition, ...)
  if partition.refusal then
    return nil
  end
  local done, reply = pcall(call, partition, ...)
  if done then
    return reply
  end
  local message = type(reply) == 'table' and reply.err or tostring(reply)
  -- Redis has no other sign of a wrong type; before version 7 the code is not at the beginning.
  if not string.find(message, 'WRONGTYPE', 1, true) then
    error(reply, 0)
  end
  partition.refusal = redis.status_reply('WRONG_TYPE')
end

-- A change of the number of shards closes a partition by adding a member with this prefix to its leases,
-- with the score -inf. Every call reads expired leases first, so an open partition needs no command to
-- be known as open. The member is longer than a handle.
local CLOSED_PREFIX = 'closed by change '

local function is_closed_marker(member)
  return string.sub(member, 1, #CLOSED_PREFIX) == CLOSED_PREFIX
end

-- Makes at most MAX_EXPIRED jobs due again whose leases have expired. True if the script has to end
-- with the second result as its reply: nil if there may be more expired leases, so that the client
-- repeats the call and no call is long; or a refusal if the partition is closed.
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
    -- Not the record itself, which may be large and is rarely needed.
    has_record[i] = redis.call('HSTRLEN', partition.job, handle) > 0
    if not has_record[i] and is_closed_marker(handle) then
      return true, redis.status_reply('CLOSED')
    end
  end
  redis.call('ZCARD', partition.due)
  redis.call('ZCARD', partition.quarantine)
  -- First, since it takes no memory: a full server allows the rest of the script after that.
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
      -- NX: a job that is due as well was never leased, and keeps its time.
      redis.call('ZADD', partition.due, 'NX', state.due, handle)
    end
  end
  return #expired == MAX_EXPIRED
end

-- The packed state of a job before a lease, '' if there is none that can be read, and with the lease.
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

-- Redis keeps a small set or hash as a list, and searches it from the front for each entry. An entry of
-- more than 64 bytes turns the list into a table, which it stays until it is empty.
local MANY_LEASES = 16

-- Adds leases that end at the same time, and their states: handle, state, handle, state, ...
local function add_leases(partition, ends, states)
  local score, leases = string.format('%.0f', ends), {}
  local long = #states > 2 * MANY_LEASES and string.rep('-', 65)
  if long then
    -- First, so that the others are added to a table.
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

-- Deletes a job, except for its entry in `due`, `lease` or `dead`.
local function delete_job(partition, handle, key)
  redis.call('HDEL', partition.job, handle)
  redis.call('HDEL', partition.state, handle)
  if key ~= '' then
    redis.call('HDEL', partition.key, key)
  end
end

-- Whether a live job has this key.
local function key_is_live(partition, key)
  return redis.call('HSTRLEN', partition.key, key) > 0
end

local function add_total(partition, name, number)
  if number > 0 then
    local added = redis.pcall('HINCRBY', partition.meta, name, number)
    local message = type(added) == 'table' and added.err
    -- Redis gives these two errors no code of their own.
    if message and (string.find(message, 'not an integer', 1, true) or string.find(message, 'overflow', 1, true)) then
      -- Another program has written there: the total starts again.
      redis.call('HSET', partition.meta, name, number)
    elseif message then
      -- Repeated without pcall: how to raise an error as the server does depends on its version.
      redis.call('HINCRBY', partition.meta, name, number)
    end
  end
end

-- The handle of a job given as 'i' with handle and tail, or as 'k' with a key. Nil if there is none.
local function find(partition, target)
  local rest = string.sub(target, 2)
  if string.byte(target) == 107 then
    local holder = redis.call('HGET', partition.key, rest)
    return holder and redis.call('HSTRLEN', partition.job, holder) > 0 and holder or nil
  end
  local handle = string.sub(rest, 1, 14)
  local record = redis.call('HGET', partition.job, handle)
  if record and record_tail(record) == string.sub(rest, 15) then
    return handle
  end
  return nil
end
