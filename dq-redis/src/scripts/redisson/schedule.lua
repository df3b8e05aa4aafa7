-- Stores jobs of one queue among Java's.
--
-- KEYS, ARGV, returns, errors: as scripts/schedule.lua, but between handles and due times: the marks,
--          the records up to the payloads, the payloads; and marks make twins, too. Also FORMAT name:
--          the queue holds members of that other format, and nothing was stored
-- cost     O(log n) a job; jobs without a key share five commands (six with the order list)

local partition = java_at(0)
if requeue_expired(partition) then
  return nil
end
local foreign = foreign_format(partition)
if foreign then
  return redis.status_reply('OTHER_FORMAT')
end

local args, sub = ARGV, string.sub
local mode, jobs = args[2], tonumber(args[3])
local HANDLES, MARKS, HEADERS = 4, 4 + jobs, 4 + 2 * jobs
local PAYLOADS, DUES, KEYED = 4 + 3 * jobs, 4 + 4 * jobs, 4 + 5 * jobs
local twins = string.find(mode, '=', 1, true) ~= nil
if string.find(mode, '+', 1, true) then
  for at = DUES + 1, DUES + jobs do
    args[at] = resolve_due(args[at])
  end
end
correct_accepted(args, HEADERS + 1, HEADERS + jobs, tonumber(args[4]))
local members, keys = {}, {}
for i = 1, jobs do
  members[i] = pack_member(args[MARKS + i], args[PAYLOADS + i])
end
local with_keys = (#args - KEYED) / 2
for at = KEYED + 1, KEYED + with_keys do
  keys[tonumber(args[at + with_keys])] = args[at]
end

-- Nothing is written before every key is known to hold what it should.
redis.call('ZCARD', partition.due)
for _, hash in ipairs({ partition.state, partition.key, partition.meta }) do
  redis.call('HSTRLEN', hash, '')
end
order_length(partition)

-- What is known under these names; of an empty hash nothing is asked.
local function known(hash, names)
  if redis.call('HLEN', hash) == 0 then
    return {}
  end
  return redis.call('HMGET', hash, unpack(args, names + 1, names + jobs))
end

local native, notes = known(partition.job, HANDLES), known(partition.outside, MARKS)
local waiting = redis.call('ZMSCORE', partition.timeout, unpack(members))
local function own_name(i)
  return args[HANDLES + i] .. record_tail(args[HEADERS + i])
end

-- Two ids may have one handle, or, in the legacy format, one mark: the second is refused.
local here = {}
for i = 1, jobs do
  if twins or native[i] or notes[i] then
    local mark = args[MARKS + i]
    local other = here[mark]
    if native[i] then
      other = other or args[HANDLES + i] .. record_tail(native[i])
    end
    if notes[i] and not other then
      local note = noted(partition, mark)
      other = note and note.handle .. record_tail(note.header)
    end
    if other and other ~= own_name(i) then
      return redis.status_reply('ID_COLLISION ' .. i)
    end
    here[mark] = own_name(i)
  end
end

local scores, order, outside = {}, {}, {}
local flushed = 0
local stored, held = {}, {}
local answers = { now }

local function flush()
  if #scores > flushed then
    redis.call('ZADD', partition.timeout, unpack(scores, flushed + 1))
    flushed = #scores
  end
  if #order > 0 then
    redis.call('RPUSH', partition.order, unpack(order))
  end
  if #outside > 0 then
    redis.call('HSET', partition.outside, unpack(outside))
  end
  order, outside = {}, {}
end

-- Whether a job has more than its id to be noted.
local function is_noted(i)
  return INDEX or #args[HEADERS + i] > RECORD_BYTES
end

local function store(i, due)
  local n = #scores
  scores[n + 1], scores[n + 2] = due, members[i]
  if ORDER ~= 'off' then
    order[#order + 1] = members[i]
  end
  if is_noted(i) then
    n = #outside
    outside[n + 1], outside[n + 2] =
      args[MARKS + i], pack_note(due, args[HANDLES + i], args[HEADERS + i])
  end
  if keys[i] then
    redis.call('HSET', partition.key, keys[i], own_name(i))
    held[keys[i]] = true
  end
  if twins then
    stored[args[MARKS + i]] = true
  end
end

local function answer(i, code, name, due)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3], answers[n + 4] = i, code, name, due
end

-- Where a native job stands: its name, when it is due, and whether it runs. Nil if it is nowhere.
local function standing(handle)
  local name = handle .. record_tail(redis.call('HGET', partition.job, handle))
  local due = redis.call('ZSCORE', partition.due, handle)
  if due then
    return name, score_time(due), false
  end
  local state = unpack_state(redis.call('HGET', partition.state, handle))
  if state then
    return name, state.due, state.token ~= 0
  end
end

local function replaces(i, there, due)
  local policy = math.floor(string.byte(args[HEADERS + i], RECORD_BYTES) / 16)
  return policy == 1 or (policy == 2 and due < there) or (policy == 3 and due > there)
end

local function settle_rival(i, due)
  local handle, note = find_job(partition, 'k' .. keys[i])
  if not handle and not note then
    store(i, due)
    return
  end
  local name, there, runs
  if handle then
    name, there, runs = standing(handle)
  else
    name, there, runs = note.handle .. record_tail(note.header), note.due, false
  end
  if not there then
    -- Somebody else removed half of it.
    delete_job(partition, handle, keys[i])
    store(i, due)
  elseif runs then
    answer(i, 'A', name, there)
  elseif not replaces(i, there, tonumber(due)) then
    answer(i, 'K', name, there)
  else
    if handle then
      redis.call('ZREM', partition.due, handle)
      delete_job(partition, handle, keys[i])
    else
      redis.call('ZREM', partition.timeout, note.member)
      leave_order(partition, { note.member }, { note.mark })
      forget(partition, note)
    end
    store(i, due)
    answer(i, 'R', own_name(i), due)
  end
end

-- Stores a job that may meet one with its handle, mark or key, or says which it met.
local function store_or_meet(i)
  local due, mark = args[DUES + i], args[MARKS + i]
  local note = nil
  if notes[i] or stored[mark] then
    flush()
    note = noted(partition, mark)
  end
  local name, there, runs
  if native[i] then
    name, there, runs = standing(args[HANDLES + i])
    if not there then
      delete_job(partition, args[HANDLES + i], '')
    end
  end
  if there then
    answer(i, runs and 'A' or 'K', name, there)
  elseif note then
    answer(i, 'K', own_name(i), note.due)
  elseif waiting[i] then
    answer(i, 'K', own_name(i), score_time(waiting[i]))
  elseif stored[mark] and not is_noted(i) then
    answer(i, 'K', own_name(i), score_time(redis.call('ZSCORE', partition.timeout, members[i])))
  elseif keys[i] then
    if held[keys[i]] then
      flush()
    end
    settle_rival(i, due)
  else
    store(i, due)
  end
end

local meets = twins or with_keys > 0
for i = 1, jobs do
  meets = meets or native[i] or notes[i] or waiting[i]
end
for i = 1, jobs do
  if meets then
    store_or_meet(i)
  else
    store(i, args[DUES + i])
  end
end
flush()
sweep_notes(partition)
publish_if_first(args[1], partition.timeout, scores)
return answers
