-- Stores jobs of one queue.
--
-- KEYS     the keys of the queue
-- ARGV     the channel; a letter for each thing to be known: '?' jobs are only to be stored in the
--          place of others that are here already, '=' two of them have the same handle or key, '+' a
--          due time is a delay, 'L' a record is large; how many jobs (at most 100); the server's time
--          as the caller reckons it, which stands in the records; the handles; the records; the due
--          times; then the keys of those that have one; then the numbers of these, from 1
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

local args, byte = ARGV, string.byte
local mode, jobs = args[2], tonumber(args[3])
local HANDLES, RECORDS, DUES = 4, 4 + jobs, 4 + 2 * jobs
local KEYED = 4 + 3 * jobs
local with_keys = (#args - KEYED) / 2

local function has(letter)
  return string.find(mode, letter, 1, true) ~= nil
end

local creates, twins = not has('?'), has('=')
if has('+') then
  for at = DUES + 1, DUES + jobs do
    args[at] = resolve(args[at])
  end
end
restamp(args, RECORDS + 1, RECORDS + jobs, tonumber(args[4]))

local keyed = {}
for at = KEYED + 1, KEYED + with_keys do
  keyed[tonumber(args[at + with_keys])] = args[at]
end

-- Nothing is written before every job is known to be storable. What is known of a job, and of a key,
-- is what was there before; of twins, what became of the first, too.
local present = redis.call('HMGET', lane.job, unpack(args, HANDLES + 1, HANDLES + jobs))
local meets, here, holders = twins, {}, {}
for i = 1, jobs do
  if present[i] or twins then
    meets = true
    local handle, record = args[HANDLES + i], args[RECORDS + i]
    local other = present[i] or here[handle]
    if other and record_tail(record) ~= record_tail(other) then
      return redis.error_reply('CLASH ' .. i)
    end
    here[handle] = record
  end
end
if with_keys > 0 then
  local found = redis.call('HMGET', lane.key, unpack(args, KEYED + 1, KEYED + with_keys))
  for k = 1, with_keys do
    if found[k] then
      meets, holders[args[KEYED + k]] = true, found[k]
    end
  end
end

local records, scores, index = {}, {}, {}
local n, flushed, replaced = 0, 0, 0
local stored = {}
local answers = { now }

local function flush()
  if n > flushed then
    redis.call('HSET', lane.job, unpack(records, flushed + 1, n))
    redis.call('ZADD', lane.due, unpack(scores, flushed + 1, n))
    if #index > 0 then
      redis.call('HSET', lane.key, unpack(index))
      index = {}
    end
    flushed = n
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
  local policy = math.floor(byte(args[RECORDS + i], RECORD_BYTES) / 16)
  return policy == 1 or (policy == 2 and due < there) or (policy == 3 and due > there)
end

-- Whether a job is to be stored that may meet one with its handle or key, or take the place of one.
local function is_stored(i)
  local handle, score, key = args[HANDLES + i], args[DUES + i], keyed[i]
  local same = present[i] or stored[handle]
  local rival = same and handle or key and holders[key]
  if not rival then
    return creates
  end
  flush()
  local record = redis.call('HGET', lane.job, rival)
  local there, runs
  if record then
    there, runs = standing(rival)
  end
  if not there then
    -- It was replaced by another job of this call; or somebody else removed half of it.
    return creates
  end
  if runs then
    answer(i, 'A', rival, record_tail(record), there)
    return false
  elseif same or not replaces(i, there, tonumber(score)) then
    answer(i, 'K', rival, record_tail(record), there)
    return false
  end
  redis.call('ZREM', lane.due, rival)
  erase(lane, rival, key)
  replaced = replaced + 1
  answer(i, 'R', handle, record_tail(args[RECORDS + i]), score)
  return true
end

for i = 1, jobs do
  if (creates and not meets) or is_stored(i) then
    local handle = args[HANDLES + i]
    records[n + 1], records[n + 2] = handle, args[RECORDS + i]
    scores[n + 1], scores[n + 2] = args[DUES + i], handle
    n = n + 2
    local key = keyed[i]
    if key then
      index[#index + 1], index[#index + 2] = key, handle
      holders[key] = twins and handle
    end
    if twins then
      stored[handle] = true
    end
  end
end
-- Before the rest is written: if the totals cannot be, nothing is.
count(lane, 'created', n / 2)
count(lane, 'replaced', replaced)
if n > 0 and has('L') then
  redis.call('HSET', lane.meta, 'large', 1)
end
flush()
announce(args[1], lane.due, scores)
return answers
