-- Begins every script: the server's time, the keys of a queue, and what happens to lapsed leases.
--
-- A job is filed under a handle of 14 bytes (see handle.rs). Its record is written once:
--   6 bytes  when it was accepted, big-endian milliseconds
--   2 bytes  the end of its id, which the handle lacks
--   1 byte   flags: 1 a key, 2 a limit of attempts, 4 headers; 16 times its conflict policy
--   then     length byte and key | 4 bytes limit | 4 bytes length and headers | payload
-- What changes is kept apart, and only for jobs that have been leased before (`state`).

local BATCH = 100
local WIDTH = 9
-- A queue that ever held a larger record is claimed from with an eye on bytes.
local LARGE = 8192
local clock = redis.call('TIME')
local micros = clock[1] * 1000000 + clock[2]
local now = math.floor(micros / 1000)

-- The keys of the queue that is number `n` (from 0) among KEYS.
local function lane_at(n, width)
  local first = n * width
  return {
    due = KEYS[first + 1], job = KEYS[first + 2], state = KEYS[first + 3],
    lease = KEYS[first + 4], key = KEYS[first + 5], dead = KEYS[first + 6],
    reason = KEYS[first + 7], meta = KEYS[first + 8], stray = KEYS[first + 9],
    first = first,
  }
end

-- Token (0 when not leased), due time, attempts, deliveries, losses; then the key, if there is one.
local STATE = '>I8i8I4I4I4'
local STATE_BYTES = 28

local function pack_state(state)
  return struct.pack(STATE, state.token, state.due, state.attempts, state.deliveries, state.losses)
    .. state.key
end

local function unpack_state(raw)
  local token, due, attempts, deliveries, losses = struct.unpack(STATE, raw)
  return {
    token = token, due = due, attempts = attempts, deliveries = deliveries, losses = losses,
    key = string.sub(raw, STATE_BYTES + 1),
  }
end

-- The key in a record; empty if it has none, or there is no record.
local function record_key(record)
  if not record then
    return ''
  end
  local flags, length = string.byte(record, 9, 10)
  if flags % 2 == 0 then
    return ''
  end
  return string.sub(record, 11, 10 + length)
end

local function record_tail(record)
  return string.sub(record, 7, 8)
end

-- A due time as clients write it: '@' and a time, or '+' and a delay, in milliseconds.
local function resolve(text)
  local number = tonumber(string.sub(text, 2))
  if string.byte(text) == 43 then
    return now + number
  end
  return number
end

local function head_of(zset)
  return tonumber(redis.call('ZRANGE', zset, 0, 0, 'WITHSCORES')[2])
end

-- Tells listeners if `due` is earlier than what was the head.
local function announce(channel, head, due)
  if due and (not head or due < head) then
    redis.call('PUBLISH', channel, string.format('%.0f', due))
  end
end

-- Puts something that is not ours aside for an operator.
local function stray(lane, member, score)
  redis.call('ZADD', lane.stray, score, member)
end

-- Gives at most BATCH lapsed leases back. True if there may be more: the caller then answers nil
-- and is asked again, so that no call is long and each sees the queue as it is now.
local function reclaim(lane)
  local lapsed = redis.call('ZRANGEBYSCORE', lane.lease, '-inf', now, 'LIMIT', 0, BATCH)
  for _, handle in ipairs(lapsed) do
    local raw = redis.call('HGET', lane.state, handle)
    if raw then
      local state = unpack_state(raw)
      state.token = 0
      state.losses = state.losses + 1
      redis.call('HSET', lane.state, handle, pack_state(state))
      redis.call('ZADD', lane.due, state.due, handle)
    else
      stray(lane, handle, now)
    end
    redis.call('ZREM', lane.lease, handle)
  end
  return #lapsed == BATCH
end

-- Takes all of a job away but its place in `due`, `lease` or `dead`.
local function erase(lane, handle, key)
  redis.call('HDEL', lane.job, handle)
  redis.call('HDEL', lane.state, handle)
  if key ~= '' then
    redis.call('HDEL', lane.key, key)
  end
end

local function count(lane, what, number)
  if number > 0 then
    redis.call('HINCRBY', lane.meta, what, number)
  end
end

-- The job that is meant: 'i' and handle and tail, or 'k' and a key. Nil if there is none.
local function find(lane, target)
  local rest = string.sub(target, 2)
  if string.byte(target) == 107 then
    return redis.call('HGET', lane.key, rest) or nil
  end
  local handle = string.sub(rest, 1, 14)
  local record = redis.call('HGET', lane.job, handle)
  if record and record_tail(record) == string.sub(rest, 15) then
    return handle
  end
  return nil
end
