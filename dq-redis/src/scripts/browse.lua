-- Lists jobs of one queue in one state, from a place on.
--
-- KEYS     the keys of the queue
-- ARGV     state: 's' scheduled, 'r' ready, 'l' leased, 'd' dead; most jobs, most bytes; then, if it
--          is not the first page, time and place of the last job of the page before
-- returns  nil: ask again; LAYOUT and a layout: not the one believed in, and nothing was done;
--          else {'1' if there is more, then for each job: handle, place (16 bytes),
--          time by which it is listed, record, state or '', reason or ''}
-- cost     O(log n) a job; after a page whose last job is gone, O(log² m) with m jobs of that time

local lane = lane_at(0, WIDTH)
if reclaim(lane) then
  return nil
end
local other = other_layout(lane)
if other then
  return other_layout_reply(other)
end

local state, limit, room = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local zset = ({ s = lane.due, r = lane.due, l = lane.lease, d = lane.dead })[state]
local first, last = '-inf', '+inf'
if state == 's' then
  first = '(' .. string.format('%.0f', now)
elseif state == 'r' then
  last = now
end

local start = 0
if first ~= '-inf' then
  start = redis.call('ZCOUNT', zset, '-inf', now)
end
if ARGV[4] then
  start = math.max(start, place_after(zset, ARGV[4], string.sub(ARGV[5], 3)))
end
local stop = redis.call('ZCOUNT', zset, '-inf', last)
local entries = {}
if start < stop then
  entries = redis.call('ZRANGE', zset, start, math.min(stop, start + limit) - 1, 'WITHSCORES')
end

local reply, taken, foreign = { '0' }, 0, false
for i = 1, #entries / 2 do
  local handle = entries[2 * i - 1]
  local record = redis.call('HGET', lane.job, handle)
  if #handle ~= HANDLE_BYTES or not record then
    stray(lane, handle, instant(entries[2 * i]))
    redis.call('ZREM', zset, handle)
    foreign = true
  elseif mend(zset, handle, entries[2 * i]) then
    foreign = true
  else
    if taken > 0 and #record > room then
      break
    end
    room = room - #record
    local at = #reply
    reply[at + 1], reply[at + 2], reply[at + 3] = handle, '\0\0' .. handle, entries[2 * i]
    reply[at + 4], reply[at + 5] = record, redis.call('HGET', lane.state, handle) or ''
    reply[at + 6] = state == 'd' and redis.call('HGET', lane.reason, handle) or ''
  end
  taken = taken + 1
end
-- The places of the others have changed.
if foreign then
  return nil
end
if start + taken < stop then
  reply[1] = '1'
end
return reply
