-- Leases due jobs of several queues: native ones, those in Java's target list, and, unless FAIR,
-- those due in Java's sorted set. (Whoever waits at the list is served once the script that moved
-- them has ended, so with FAIR that is another one: relay.lua.)
--
-- KEYS, ARGV, returns: as scripts/claim.lua
-- cost     O(log n) a job, and twelve small commands a queue; with order list `strict` O(length of
--          that list) for each member taken from the sorted set

local left, room = tonumber(ARGV[1]), tonumber(ARGV[2])
local looks = room == 0
local replies = { now }

-- Fetches a few at a time, until there are enough or they are too large for more.
local function some(most, fetch)
  local found, bytes = {}, 0
  while #found < most and bytes <= room do
    local few = math.min(most - #found, FEW)
    local items = fetch(#found, few)
    for _, item in ipairs(items) do
      found[#found + 1] = item
      bytes = bytes + #item.record
    end
    if #items < few then
      break
    end
  end
  return found
end

-- Payloads in Java's target list. They have no due time, and get an id once they are taken.
local function target_due(lane, most)
  return some(most, function(from, number)
    local found = {}
    if number > 0 then
      for i, payload in ipairs(redis.call('LRANGE', lane.target, from, from + number - 1)) do
        found[i] = { due = now, payload = payload, record = payload, listed = true }
      end
    end
    return found
  end)
end

-- Native jobs that are due: retries and what else was leased before.
local function native_due(lane, most)
  return some(most, function(from, number)
    local entries = redis.call('ZRANGEBYSCORE', lane.due, '-inf', this_instant, 'WITHSCORES', 'LIMIT', from, number)
    local handles, found = {}, {}
    for i = 1, #entries / 2 do
      handles[i] = entries[2 * i - 1]
    end
    if #handles > 0 then
      local records = redis.call('HMGET', lane.job, unpack(handles))
      local states = redis.call('HMGET', lane.state, unpack(handles))
      for i, handle in ipairs(handles) do
        local record = records[i] or ''
        found[i] = {
          due = instant(entries[2 * i]), handle = handle, record = record, raw = states[i],
          native = true, foreign = #handle ~= HANDLE_BYTES or #record < RECORD_BYTES,
        }
      end
    end
    return found
  end)
end

-- Members of Java's sorted set that are due.
local function java_due(lane, most)
  return some(most, function(from, number)
    local entries = redis.call('ZRANGEBYSCORE', lane.timeout, '-inf', this_instant, 'WITHSCORES', 'LIMIT', from, number)
    local found, ours, marks = {}, {}, {}
    for i = 1, #entries / 2 do
      local member = entries[2 * i - 1]
      local format, mark, payload = parse(member)
      -- With all that it will have: a table grows slowly.
      local item = {
        due = instant(entries[2 * i]), member = member, record = '', mark = mark or '',
        payload = payload or '', foreign = not format, noted = false, handle = false,
      }
      if format then
        ours[#ours + 1], marks[#marks + 1] = item, mark
      end
      found[i] = item
    end
    local notes = #marks > 0 and redis.call('HMGET', lane.outside, unpack(marks))
    for i, item in ipairs(ours) do
      local note = unpack_note(item.mark, notes[i])
      item.noted = notes[i] and true or false
      if note then
        item.handle, item.record = note.handle, note.header .. item.payload
      else
        local handle, tail = fold(id_of(item.mark))
        item.handle, item.record = handle, plain_record(tail, item.payload)
      end
    end
    return found
  end)
end

-- The first jobs of a lane, oldest first but what is listed before all others. No more than fit, but
-- one at least, however large.
local function gather(lane, most)
  local items = target_due(lane, most)
  local native = native_due(lane, most - #items)
  local java = FAIR and {} or java_due(lane, most - #items)
  -- Both are in order already.
  local n, j = 1, 1
  while native[n] or java[j] do
    if native[n] and not (java[j] and java[j].due < native[n].due) then
      items[#items + 1], n = native[n], n + 1
    else
      items[#items + 1], j = java[j], j + 1
    end
  end
  local taken = {}
  for i = 1, math.min(most, #items) do
    if i > 1 and #items[i].record > room then
      break
    end
    room = room - #items[i].record
    taken[i] = items[i]
  end
  return taken
end

-- Names what has no id. So has what bears that of another job, whether by chance or by garbage: it
-- must not take that one's place. Names are made of tokens, which no lane gives out twice.
local function name(lane, items, token)
  local names = {}
  for i, item in ipairs(items) do
    names[i] = item.handle or ''
  end
  local present = #names > 0 and redis.call('HMGET', lane.job, unpack(names))
  local used = {}
  for i, item in ipairs(items) do
    if not item.handle or present[i] or used[item.handle] then
      local handle, tail = fold(struct.pack('>I8', token + i) .. 'fromlist')
      item.handle, item.record = handle, plain_record(tail, item.payload)
    end
    used[item.handle] = true
  end
end

-- Takes jobs from where they wait, and leases them. All is read before anything is written: a key of
-- another type changes nothing. And what is written first takes no memory, after which a server that
-- is full allows the rest.
local function lease(lane, items, last, ends, reply)
  if #items == 0 then
    return
  end
  local jobs, new, foreign = {}, {}, {}
  local listed, waiting, outside, members, marks, notes = 0, 0, 0, {}, {}, {}
  for _, item in ipairs(items) do
    if item.listed then
      listed = listed + 1
    elseif item.member then
      outside = outside + 1
    else
      waiting = waiting + 1
    end
    if item.foreign then
      foreign[#foreign + 1] = item
    else
      jobs[#jobs + 1] = item
      if not item.native then
        new[#new + 1] = item
        if item.member then
          members[#members + 1], marks[#marks + 1] = item.member, item.mark
        end
        if item.noted then
          notes[#notes + 1] = item.mark
        end
      end
    end
  end
  local token = math.max((tonumber(last or 0) or 0) + 1, micros)
  name(lane, new, token)
  redis.call('HSTRLEN', lane.state, '')
  order_length(lane)
  if #foreign > 0 then
    redis.call('ZCARD', lane.stray)
  end
  if listed > 0 then
    redis.call('LPOP', lane.target, listed)
  end
  -- Those of each set are the first ones of it.
  if waiting > 0 then
    redis.call('ZREMRANGEBYRANK', lane.due, '0', waiting - 1)
  end
  if outside > 0 then
    redis.call('ZREMRANGEBYRANK', lane.timeout, '0', outside - 1)
  end
  for _, item in ipairs(foreign) do
    if item.member then
      stray_member(lane, item.member, item.due)
    else
      stray(lane, item.handle, item.due)
    end
  end
  if #jobs == 0 then
    return
  end
  if #notes > 0 then
    redis.call('HDEL', lane.outside, unpack(notes))
  end
  local records, changes = {}, {}
  for n, item in ipairs(jobs) do
    local raw, packed = lease_state(item.raw, item.record, token + n - 1, item.due)
    changes[2 * n - 1], changes[2 * n] = item.handle, packed
    if not item.native then
      records[#records + 1], records[#records + 2] = item.handle, item.record
    end
    local at = #reply
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] =
      item.handle, item.due, item.record, raw
  end
  if #records > 0 then
    redis.call('HSET', lane.job, unpack(records))
  end
  hold(lane, ends, changes)
  redis.call('HSET', lane.meta, 'token', string.format('%.0f', token + #jobs - 1))
  reply[2], reply[3] = ends, string.format('%.0f', token)
  left = left - #jobs
  if #members > 0 then
    leave_order(lane, members, marks)
    sweep_order(lane, members)
  end
end

-- When the oldest jobs are due, of each place as many as are wanted.
local function see(lane, most, reply)
  for _ = 1, math.min(most, redis.call('LLEN', lane.target)) do
    reply[#reply + 1] = now
  end
  for _, zset in ipairs(FAIR and { lane.due } or { lane.due, lane.timeout }) do
    local entries =
      redis.call('ZRANGEBYSCORE', zset, '-inf', this_instant, 'WITHSCORES', 'LIMIT', '0', most)
    for i = 2, #entries, 2 do
      reply[#reply + 1] = instant(entries[i])
    end
  end
end

local function serve(lane, max, length)
  local paused, last = unpack(redis.call('HMGET', lane.meta, 'paused', 'token'))
  -- With FAIR nothing else looks there before leases are written.
  redis.call('ZCARD', lane.timeout)
  local crowded = reclaim(lane)
  if paused then
    return { false }
  end
  local reply = looks and { false } or { false, 0, 0 }
  local most = math.min(max, left, at_once(lane))
  if looks then
    see(lane, most, reply)
  elseif most > 0 and room > 0 then
    lease(lane, gather(lane, most), last, now + length, reply)
  end
  local next_due = head_of(lane.due)
  for _, other in ipairs({ head_of(lane.timeout) or false, head_of(lane.lease) or false }) do
    if other and (not next_due or other < next_due) then
      next_due = other
    end
  end
  if crowded or redis.call('LLEN', lane.target) > 0 then
    next_due = now
  end
  reply[1] = next_due or false
  return reply
end

for n = 0, #KEYS / WIDTH - 1 do
  local max, length = tonumber(ARGV[3 + 2 * n]), tonumber(ARGV[4 + 2 * n])
  local lane = java_at(n)
  replies[n + 2] = guarded(serve, lane, max, length) or lane.refusal
end
return replies
