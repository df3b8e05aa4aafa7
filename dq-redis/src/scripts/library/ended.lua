-- Jobs that have ended: the history, and pinned ids. keys.lua describes the keys.

-- The limit of the history: maximum number of jobs (0 remembers none), maximum age in milliseconds.
local history_max, history_age = 0, 0

local function read_history_limit(max, age)
  history_max, history_age = tonumber(max), tonumber(age)
end

-- Fails if a key of the history has another type, before anything is written.
local function check_ended_keys(partition)
  if history_max > 0 then
    redis.call('ZCARD', partition.ended)
    redis.call('HSTRLEN', partition.past, '')
  end
end

-- Arguments with which flush_ended calls HSET past (handle, past job, …), ZADD ended (time, handle,
-- …), HSET pin (handle, pin, …) and ZADD unpin (time, handle, …).
local past_jobs, ended_at, pins, pinned_until = {}, {}, {}, {}
local longest_pin = 0

-- Adds a job that has ended to the history, and pins its id, as of the next flush_ended. The note in
-- `state` has the fields that are copied from the record.
local function add_ended(partition, handle, letter, state, reason)
  if string.sub(state, 43, 48) ~= NO_TIME then
    if #pins == 0 then
      -- Fail if a key has another type, before the job is deleted.
      redis.call('ZCARD', partition.unpin)
      redis.call('HSTRLEN', partition.pin, '')
    end
    local remember = struct.unpack('>I6', state, 43)
    local pin_end = now + remember
    pins[#pins + 1], pins[#pins + 2] = handle,
      struct.pack('>I8', pin_end) .. string.sub(state, 59, 60) .. string.sub(state, 9, 16)
    local n = #pinned_until
    pinned_until[n + 1], pinned_until[n + 2] = string.format('%.0f', pin_end), handle
    longest_pin = math.max(longest_pin, remember)
  end
  if history_max > 0 then
    local n = #past_jobs
    past_jobs[n + 1], past_jobs[n + 2] = handle,
      letter .. struct.pack('>I4', #state) .. state .. reason
    ended_at[n + 1], ended_at[n + 2] = now_text, handle
  end
end

-- Adds a job that is not leased now and whose record exists, as add_ended does. `due` is its due time,
-- or nil for the one in its state. The caller deletes the job afterwards.
local function add_ended_unleased(partition, handle, letter, record, due, reason)
  if history_max == 0 and not is_to_be_pinned(record) then
    return
  end
  local state = unpack_state(redis.call('HGET', partition.state, handle))
    or fresh_state(record, due or 0)
  state.due = due or state.due
  state.note = fill_note(state.note, record)
  add_ended(partition, handle, letter, pack_state(state), reason)
end

-- Deletes a waiting or dead job, and adds it to those that have ended. The key of a dead job may
-- belong to another one.
local function end_unleased(partition, handle, letter, due, reason, is_dead)
  local record = redis.call('HGET', partition.job, handle)
  if record and #record >= RECORD_BYTES then
    add_ended_unleased(partition, handle, letter, record, due, reason)
  end
  delete_job(partition, handle, is_dead and '' or record_key(record))
  local groups = not is_dead and groups_of(partition)
  if groups then
    groups.leave(handle, record)
  end
end

-- Makes a sorted set and its hash live for this long, at least.
local function extend_expiry(milliseconds, zset, hash)
  if redis.call('PTTL', zset) < milliseconds then
    -- The keys live twice as long, so that not every call writes this.
    local text = string.format('%.0f', 2 * milliseconds)
    redis.call('PEXPIRE', zset, text)
    redis.call('PEXPIRE', hash, text)
  end
end

-- Removes the first entries of a sorted set, and the fields of the same names from a hash.
local function remove_first(zset, hash, count)
  if count > 0 then
    redis.call('HDEL', hash, unpack(redis.call('ZRANGE', zset, '0', count - 1)))
    redis.call('ZREMRANGEBYRANK', zset, '0', count - 1)
  end
end

-- Maximum number of jobs that one call removes from the history, and of pins: more than one call
-- can add, so that what exceeds the limit shrinks.
local MAX_FORGOTTEN = 200

-- Forgets pins that have ended.
local function remove_ended_pins(partition)
  local ended = redis.call('ZCOUNT', partition.unpin, '-inf', now_text)
  remove_first(partition.unpin, partition.pin, math.min(ended, MAX_FORGOTTEN))
end

-- Number of the oldest jobs in the history (the sorted set) that are beyond its limit.
local function count_forgotten(ended)
  local oldest = '(' .. string.format('%.0f', now - history_age)
  return math.max(
    redis.call('ZCARD', ended) - history_max, redis.call('ZCOUNT', ended, '-inf', oldest))
end

-- Writes what add_ended has gathered. Follows a write that takes no memory: a server out of memory
-- then allows these.
local function flush_ended(partition)
  if #pins > 0 then
    redis.call('HSET', partition.pin, unpack(pins))
    redis.call('ZADD', partition.unpin, unpack(pinned_until))
    remove_ended_pins(partition)
    extend_expiry(longest_pin, partition.unpin, partition.pin)
  end
  if #past_jobs > 0 then
    -- Jobs that would be removed again are left out.
    local first = math.max(1, #past_jobs + 1 - 2 * history_max)
    redis.call('HSET', partition.past, unpack(past_jobs, first))
    redis.call('ZADD', partition.ended, unpack(ended_at, first))
    remove_first(
      partition.ended, partition.past, math.min(count_forgotten(partition.ended), MAX_FORGOTTEN))
    extend_expiry(history_age, partition.ended, partition.past)
  end
end

-- The pins of the handles args[from … to], each false if there is none; nil if no id is pinned.
local function find_pinned(partition, args, from, to)
  if redis.call('ZCARD', partition.unpin) == 0 then
    return nil
  end
  return redis.call('HMGET', partition.pin, unpack(args, from, to))
end

-- The due time of the ended job, if this pin is valid and of the id with this tail; else nil.
local function pinned_due(pin, tail)
  if pin and #pin >= 18 and struct.unpack('>I8', pin) > now and string.sub(pin, 9, 10) == tail then
    return struct.unpack('>i8', pin, 11)
  end
end

-- The tail of a past job; nil if it is too short. The tail is in the state, which follows a letter and
-- a length.
local function tail_of_past(past)
  return #past >= 5 + STATE_BYTES and string.sub(past, 64, 65) or nil
end

-- The past jobs of the handles args[from … to], each false if there is none; nil without a history.
local function find_past(partition, args, from, to)
  if history_max == 0 then
    return nil
  end
  return redis.call('HMGET', partition.past, unpack(args, from, to))
end

-- The due time of the job with this handle and tail that has ended, by its pin and its past job (each
-- false or nil if there is none); nil if neither is valid.
local function due_of_ended(partition, pin, past, handle, tail)
  local due = pinned_due(pin, tail)
  if not due and past and tail_of_past(past) == tail then
    local at = redis.call('ZSCORE', partition.ended, handle)
    due = at and tonumber(at) >= now - history_age and struct.unpack('>i8', past, 14) or nil
  end
  return due
end
