-- Stores jobs of one queue.
--
-- KEYS     the keys of the queue
-- ARGV     the channel; then for each job (at most 100): handle, due time, record without its time;
--          then '?' if a job is only to be stored in the place of one that is here already
-- returns  nil: ask again; LAYOUT and a layout: not the one believed in, and nothing was done;
--          else {now, then for each job that was not simply created (with '?': not passed over): its
--          number from 1, 'K' kept | 'R' replaced | 'A' already running, handle and tail, due time}
-- errors   CLASH number: another job has the same handle, and nothing was stored
-- cost     O(log n) a job; jobs without a key share three commands, those with one have two more

local lane = lane_at(0, WIDTH)
if reclaim(lane) then
  return nil
end
local other = other_layout(lane)
if other then
  return other_layout_reply(other)
end

local args, sub, byte = ARGV, string.sub, string.byte
local jobs = math.floor((#args - 1) / 3)
local creates = #args == 3 * jobs + 1
local handles, keys, keyed = {}, {}, {}
for i = 1, jobs do
  handles[i] = args[3 * i - 1]
  local flags, length = byte(args[3 * i + 1], 3, 4)
  if flags % 2 == 1 then
    keyed[i] = sub(args[3 * i + 1], 5, 4 + length)
    keys[#keys + 1] = keyed[i]
  end
end

-- Nothing is written before every job is known to be storable.
local present = redis.call('HMGET', lane.job, unpack(handles))
local here = {}
-- Whether a job may meet another, of this call or there before.
local meets = false
for i = 1, jobs do
  local handle = handles[i]
  local twin = here[handle]
  if present[i] or twin then
    meets = true
    local tail = sub(args[3 * i + 1], 1, 2)
    if tail ~= (present[i] and record_tail(present[i]) or sub(args[3 * twin + 1], 1, 2)) then
      return redis.error_reply('CLASH ' .. i)
    end
  end
  here[handle] = i
end

local holders = {}
if #keys > 0 then
  local found = redis.call('HMGET', lane.key, unpack(keys))
  local twins = {}
  for i, key in ipairs(keys) do
    holders[key] = found[i] or nil
    meets = meets or found[i] or twins[key]
    twins[key] = true
  end
end

local head = head_of(lane.due)
local stamp = struct.pack('>I6', now)
local records, dues, index, n = {}, {}, {}, 0
local earliest, created, replaced = nil, 0, 0
local stored = {}
local answers = { now }

local function flush()
  if n > 0 then
    redis.call('HSET', lane.job, unpack(records))
    redis.call('ZADD', lane.due, unpack(dues))
    if #index > 0 then
      redis.call('HSET', lane.key, unpack(index))
    end
    records, dues, index, n = {}, {}, {}, 0
  end
end

local function store(i, due, score)
  local handle, record = handles[i], stamp .. args[3 * i + 1]
  n = n + 2
  records[n - 1], records[n] = handle, record
  dues[n - 1], dues[n] = score, handle
  if #record > LARGE then
    redis.call('HSET', lane.meta, 'large', 1)
  end
  local key = keyed[i]
  if key then
    index[#index + 1], index[#index + 2] = key, handle
    holders[key] = handle
  end
  if meets then
    stored[handle] = true
  end
  created = created + 1
  if not earliest or due < earliest then
    earliest = due
  end
end

local function answer(i, code, handle, tail, due)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3], answers[n + 4] = i, code, handle .. tail, due
end

-- Where a job of this queue stands: when it is due, and whether it runs. Nil if it is nowhere.
local function standing(handle)
  local due = redis.call('ZSCORE', lane.due, handle)
  if due then
    return instant(due), false
  end
  local state = unpack_state(redis.call('HGET', lane.state, handle))
  if state then
    return state.due, state.token ~= 0
  end
end

local function replaces(i, there, due)
  local policy = math.floor(byte(args[3 * i + 1], 3) / 16)
  return policy == 1 or (policy == 2 and due < there) or (policy == 3 and due > there)
end

for i = 1, jobs do
  local due, score = resolve(args[3 * i])
  local rival = meets and keyed[i] and holders[keyed[i]]
  local same = meets and (present[i] or stored[handles[i]])
  if not same and not rival then
    if creates then
      store(i, due, score)
    end
  else
    flush()
    local other = same and handles[i] or rival
    local record = redis.call('HGET', lane.job, other)
    local there, runs
    if record then
      there, runs = standing(other)
    end
    if not there then
      -- It was replaced by another job of this call; or somebody else removed half of it.
      if creates then
        store(i, due, score)
      end
    else
      if runs then
        answer(i, 'A', other, record_tail(record), there)
      elseif same or not replaces(i, there, due) then
        answer(i, 'K', other, record_tail(record), there)
      else
        redis.call('ZREM', lane.due, other)
        erase(lane, other, keyed[i])
        replaced = replaced + 1
        store(i, due, score)
        answer(i, 'R', handles[i], sub(args[3 * i + 1], 1, 2), due)
      end
    end
  end
end
-- Before the rest is written: if the totals cannot be, nothing is.
count(lane, 'created', created)
count(lane, 'replaced', replaced)
flush()
announce(args[1], head, earliest)
return answers
