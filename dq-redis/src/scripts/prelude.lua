-- Begins every script: the server's time, the keys of a queue, and what happens to lapsed leases.
--
-- A job is filed under a handle of 14 bytes (see handle.rs). Its record is written once:
--   6 bytes  when it was accepted, big-endian milliseconds (see clock.rs)
--   2 bytes  the end of its id, which the handle lacks
--   1 byte   flags: 1 a key, 2 a limit of attempts, 4 headers; 16 times its conflict policy
--   then     length byte and key | 4 bytes limit | 4 bytes length and headers | payload
-- What changes is kept apart, and only for jobs that have been leased before (`state`).

local BATCH, BATCH_AS_TEXT = 100, '100'
local WIDTH = 9
local FAR = 2 ^ 52
local clock = redis.call('TIME')
local micros = clock[1] * 1000000 + clock[2]
local now = math.floor(micros / 1000)
-- The same as a text. Redis takes long to write a number of Lua's as one, so arguments of commands
-- that every call runs are texts.
local this_instant = string.format('%.0f', now)

-- The last argument is what the caller takes the layouts of the queues for, each followed by ';'. It
-- is empty if none of them has shards.
local beliefs, believed = {}, table.remove(ARGV)
if believed ~= '' then
  for layout in string.gmatch(believed, '([^;]*);') do
    beliefs[#beliefs + 1] = layout
  end
end

-- The keys of the queue that is number `n` (from 0) among KEYS.
local function lane_at(n, width)
  local first = n * width
  return {
    due = KEYS[first + 1], job = KEYS[first + 2], state = KEYS[first + 3],
    lease = KEYS[first + 4], key = KEYS[first + 5], dead = KEYS[first + 6],
    reason = KEYS[first + 7], meta = KEYS[first + 8], stray = KEYS[first + 9],
    first = first, belief = beliefs[n + 1] or '',
  }
end

-- Token (0 when not leased), due time, attempts, deliveries, losses; then the key, if there is one.
local STATE = '>I8i8I4I4I4'
local STATE_BYTES = 28
local HANDLE_BYTES = 14
-- What every record has: all up to the flags.
local RECORD_BYTES = 9

local function pack_state(state)
  return struct.pack(STATE, state.token, state.due, state.attempts, state.deliveries, state.losses)
    .. state.key
end

-- Nil if there is none, or something that is none.
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

-- The key in a record; empty if it has none, or there is no record that can be read.
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

-- The length of what stands before the payload in a record without its time.
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

-- Who stores jobs writes into the records when they are accepted, as far as that is known there. A
-- time that is not yet, or was over a second ago, is mended.
local RECKONED = 1000

local function restamp(records, from, to, reckoned)
  if reckoned > now or reckoned < now - RECKONED then
    local stamp = struct.pack('>I6', now)
    for at = from, to do
      records[at] = stamp .. string.sub(records[at], 7)
    end
  end
end

-- A due time as clients write it, a time or '+' and a delay in milliseconds, as a score. The jobs of
-- one call often have the same delay.
local delay, delayed
local function resolve(text)
  if string.byte(text) ~= 43 then
    return text
  end
  if text ~= delay then
    delay, delayed = text, string.format('%.0f', now + tonumber(text))
  end
  return delayed
end

-- A score as a time. Others may have written it: what is beyond all times becomes the last or the
-- first that can be counted with.
local function instant(score)
  local time = tonumber(score)
  if time > FAR or time < -FAR or time % 1 ~= 0 then
    time = math.max(-FAR, math.min(FAR, math.floor(time)))
  end
  return time
end

local function head_of(zset)
  local score = redis.call('ZRANGE', zset, '0', '0', 'WITHSCORES')[2]
  return score and instant(score)
end

-- Tells listeners if one of these entries (score, member, score, member, ...), which have just been
-- added to a set, is its head.
local function announce(channel, zset, entries)
  if #entries == 0 then
    return
  end
  local head = redis.call('ZRANGE', zset, '0', '0')[1]
  -- The last time of a member that was moved twice holds.
  for i = #entries, 2, -2 do
    if entries[i] == head then
      redis.call('PUBLISH', channel, entries[i - 1])
      return
    end
  end
end

-- Puts something that is not ours aside for an operator.
local function stray(lane, member, score)
  -- Where it cannot be put, it stays. And what is written first takes no memory, after which a
  -- server that is full allows the rest.
  redis.call('ZCARD', lane.stray)
  redis.call('ZREM', lane.due, member)
  redis.call('ZADD', lane.stray, score, member)
end

-- Gives an entry a whole number as its score, if others gave it something else: a listing could not
-- name its place. Rounded up, so that it does not move to where a listing has been. Nil if nothing
-- was wrong, else the number.
local function mend(zset, member, score)
  local wrong = tonumber(score)
  if wrong % 1 == 0 then
    return nil
  end
  local right = -instant(-wrong)
  redis.call('ZREM', zset, member)
  redis.call('ZADD', zset, string.format('%.0f', right), member)
  return right
end

-- What the function returns; or nothing, and why, if a key of this lane is of another type.
local function guarded(call, lane, ...)
  if lane.refusal then
    return nil
  end
  local done, reply = pcall(call, lane, ...)
  if done then
    return reply
  end
  local why = type(reply) == 'table' and reply.err or tostring(reply)
  if not string.find(why, 'WRONGTYPE', 1, true) then
    error(reply, 0)
  end
  lane.refusal = why
end

-- Gives at most BATCH lapsed leases back. True if there may be more: the caller then answers nil
-- and is asked again, so that no call is long and each sees the queue as it is now.
local function reclaim(lane)
  local lapsed = redis.call('ZRANGEBYSCORE', lane.lease, '-inf', this_instant, 'LIMIT', '0', BATCH_AS_TEXT)
  if #lapsed == 0 then
    return false
  end
  -- All is read before anything is written: a key of another type changes nothing. And what is
  -- written first takes no memory, after which a server that is full allows the rest.
  local states = redis.call('HMGET', lane.state, unpack(lapsed))
  -- Records may be large, and are hardly ever needed.
  local there = {}
  for i, handle in ipairs(lapsed) do
    there[i] = redis.call('HSTRLEN', lane.job, handle) > 0
  end
  redis.call('ZCARD', lane.due)
  redis.call('ZCARD', lane.stray)
  redis.call('ZREM', lane.lease, unpack(lapsed))
  for i, handle in ipairs(lapsed) do
    if not there[i] then
      stray(lane, handle, now)
    else
      local state = unpack_state(states[i])
        or fresh_state(redis.call('HGET', lane.job, handle), now)
      state.token = 0
      state.losses = state.losses + 1
      redis.call('HSET', lane.state, handle, pack_state(state))
      -- One that waits as well was never leased: it keeps its time.
      redis.call('ZADD', lane.due, 'NX', state.due, handle)
    end
  end
  return #lapsed == BATCH
end

-- The state of a job before a lease, '' if there is none that can be read, and from then on.
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

-- Redis keeps a small set or hash as a list, which it searches from the front for each of its
-- entries. An entry of more than 64 bytes makes it a table for as long as it is not empty.
local MANY = 16

-- Notes leases with one end, and their states: handle, state, handle, state, ...
local function hold(lane, ends, states)
  local score, leases = string.format('%.0f', ends), {}
  local long = #states > 2 * MANY and string.rep('-', 65)
  if long then
    -- First, so that the others find a table.
    leases[1], leases[2] = score, long
    redis.call('HSET', lane.state, long, '')
  end
  local n = #leases
  for i = 1, #states, 2 do
    leases[n + i], leases[n + i + 1] = score, states[i]
  end
  redis.call('ZADD', lane.lease, unpack(leases))
  redis.call('HSET', lane.state, unpack(states))
  if long then
    redis.call('ZREM', lane.lease, long)
    redis.call('HDEL', lane.state, long)
  end
end

-- Takes all of a job away but its place in `due`, `lease` or `dead`.
local function erase(lane, handle, key)
  redis.call('HDEL', lane.job, handle)
  redis.call('HDEL', lane.state, handle)
  if key ~= '' then
    redis.call('HDEL', lane.key, key)
  end
end

-- Whether a live job has this key.
local function key_is_live(lane, key)
  return redis.call('HSTRLEN', lane.key, key) > 0
end

local function count(lane, what, number)
  if number > 0 then
    local counted = redis.pcall('HINCRBY', lane.meta, what, number)
    local why = type(counted) == 'table' and counted.err
    if why and (string.find(why, 'not an integer', 1, true) or string.find(why, 'overflow', 1, true)) then
      -- Others have written there: it begins anew.
      redis.call('HSET', lane.meta, what, number)
    elseif why then
      -- Once more, and not caught: how to throw an error as the server does depends on its version.
      redis.call('HINCRBY', lane.meta, what, number)
    end
  end
end

-- The layout that a shard holds if it is not the one that the caller believes in.
local function other_layout(lane)
  local held = redis.call('HGET', lane.meta, 'layout') or ''
  return held ~= lane.belief and held or nil
end

-- What is answered to a caller who must know the layout.
local function other_layout_reply(layout)
  return { ok = 'LAYOUT ' .. layout }
end

-- The job that is meant: 'i' and handle and tail, or 'k' and a key. Nil if there is none.
local function find(lane, target)
  local rest = string.sub(target, 2)
  if string.byte(target) == 107 then
    local holder = redis.call('HGET', lane.key, rest)
    return holder and redis.call('HSTRLEN', lane.job, holder) > 0 and holder or nil
  end
  local handle = string.sub(rest, 1, 14)
  local record = redis.call('HGET', lane.job, handle)
  if record and record_tail(record) == string.sub(rest, 15) then
    return handle
  end
  return nil
end
