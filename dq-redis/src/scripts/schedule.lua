-- Stores jobs of one queue.
--
-- KEYS     the keys of the queue
-- ARGV     the channel; '?' if jobs are only to be stored in the place of others that are here
--          already, '=' if two of them have the same handle or key, '' or both; how many jobs (at most
--          100); then for each: handle, due time, record without its time; then for each that has a
--          key: its number from 1, the key
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
local jobs = tonumber(args[3])
local creates, twins = args[2] ~= '?' and args[2] ~= '?=', sub(args[2], -1) == '='
local handles, keyed, keys = {}, {}, {}
for i = 1, jobs do
  handles[i] = args[3 * i + 1]
end
for at = 3 * jobs + 4, #args, 2 do
  keyed[tonumber(args[at])] = args[at + 1]
  keys[#keys + 1] = args[at + 1]
end

-- Nothing is written before every job is known to be storable. What is known of a job, and of a key,
-- is what was there before; of twins, what became of the first, too.
local present = redis.call('HMGET', lane.job, unpack(handles))
local meets, here, holders = twins, {}, {}
for i = 1, jobs do
  if present[i] or twins then
    meets = true
    local record, twin = args[3 * i + 3], here[handles[i]]
    if present[i] or twin then
      local tail = present[i] and record_tail(present[i]) or sub(args[3 * twin + 3], 1, 2)
      if sub(record, 1, 2) ~= tail then
        return redis.error_reply('CLASH ' .. i)
      end
    end
    here[handles[i]] = i
  end
end
if #keys > 0 then
  local found = redis.call('HMGET', lane.key, unpack(keys))
  for i, key in ipairs(keys) do
    if found[i] then
      meets, holders[key] = true, found[i]
    end
  end
end

local stamp = struct.pack('>I6', now)
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
  local policy = math.floor(byte(args[3 * i + 3], 3) / 16)
  return policy == 1 or (policy == 2 and due < there) or (policy == 3 and due > there)
end

-- Whether a job is to be stored that may meet one with its handle or key, or take the place of one.
local function yields_to(i, score)
  local handle, key = handles[i], keyed[i]
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
  answer(i, 'R', handle, sub(args[3 * i + 3], 1, 2), score)
  return true
end

for i = 1, jobs do
  local score, stores = resolve(args[3 * i + 2]), creates
  if meets then
    stores = yields_to(i, score)
  end
  if stores then
    local handle, record = handles[i], args[3 * i + 3]
    records[n + 1], records[n + 2] = handle, stamp .. record
    scores[n + 1], scores[n + 2] = score, handle
    n = n + 2
    if #record > LARGE - 6 then
      redis.call('HSET', lane.meta, 'large', 1)
    end
    stored[handle] = twins
    local key = keyed[i]
    if key then
      index[#index + 1], index[#index + 2] = key, handle
      holders[key] = twins and handle
    end
  end
end
-- Before the rest is written: if the totals cannot be, nothing is.
count(lane, 'created', n / 2)
count(lane, 'replaced', replaced)
flush()
announce(args[1], lane.due, scores)
return answers
