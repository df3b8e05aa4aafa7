-- Lists jobs of one partition in one state, from a position on.
--
-- KEYS     the keys of the partition
-- ARGV     state: 's' scheduled, 'r' ready, 'l' leased, 'd' dead; most jobs, most bytes; then, if it
--          is not the first page, time and position of the last job of the page before
-- returns  nil: repeat the call; CLOSED: the partition is closed; else {'1' if there is more, then for
--          each job: handle, position (16 bytes), time by which it is listed, record, state or '',
--          reason or ''}
-- cost     O(log n) a job; after a page whose last job is gone, O(log² m) with m jobs of that time

local partition = partition_at(0, KEYS_PER_PARTITION)
local ends, refusal = requeue_expired(partition)
if ends then
  return refusal
end

local state, limit, bytes_left = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local zset = ({ s = partition.due, r = partition.due, l = partition.lease, d = partition.dead })[state]
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
  start = math.max(start, rank_after(zset, ARGV[4], string.sub(ARGV[5], 3)))
end
local stop = redis.call('ZCOUNT', zset, '-inf', last)
local entries = {}
if start < stop then
  entries = redis.call('ZRANGE', zset, start, math.min(stop, start + limit) - 1, 'WITHSCORES')
end

local reply, taken, changed = { '0' }, 0, false
for i = 1, #entries / 2 do
  local handle = entries[2 * i - 1]
  local record = redis.call('HGET', partition.job, handle)
  if #handle ~= HANDLE_BYTES or not record then
    quarantine(partition, handle, score_time(entries[2 * i]))
    redis.call('ZREM', zset, handle)
    changed = true
  elseif round_score(zset, handle, entries[2 * i]) then
    changed = true
  else
    if taken > 0 and #record > bytes_left then
      break
    end
    bytes_left = bytes_left - #record
    local at = #reply
    reply[at + 1], reply[at + 2], reply[at + 3] = handle, '\0\0' .. handle, entries[2 * i]
    reply[at + 4], reply[at + 5] = record, redis.call('HGET', partition.state, handle) or ''
    reply[at + 6] = state == 'd' and redis.call('HGET', partition.reason, handle) or ''
  end
  taken = taken + 1
end
-- The ranks of the other entries have changed.
if changed then
  return nil
end
if start + taken < stop then
  reply[1] = '1'
end
return reply
