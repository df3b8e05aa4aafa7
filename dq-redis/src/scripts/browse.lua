-- Lists jobs of one partition in one state, in order of time and handle.
--
-- KEYS     the keys of the partition
-- ARGV     1  state: 's' scheduled, 'r' ready, 'l' leased, 'd' dead
--          2  maximum number of jobs
--          3  maximum bytes of records, unless the first is larger
--          4  time and 5 position (16 bytes) of the last job of the previous page; none for the
--             first
-- returns  nil: repeat the call (expired leases, or entries that were repaired); CLOSED: the
--          partition is closed; else {'1' if there are more jobs, else '0'; then for each job:
--          handle, position, time, record, packed state or '', reason or ''}. The time is the due
--          time, the end of the lease or the time of death. The position breaks ties of equal
--          times: two zero bytes and the handle.
-- cost     O(log n) a job; after a page whose last job is gone, O(log² m) with m jobs of that time

local partition = partition_at(0, KEYS_PER_PARTITION)
local stop, early_reply = requeue_expired(partition)
if stop then
  return early_reply
end

local state, limit, bytes_left = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local zset = ({ s = partition.due, r = partition.due, l = partition.lease, d = partition.dead })[state]
local first, last = '-inf', '+inf'
if state == 's' then
  first = '(' .. string.format('%.0f', now)
elseif state == 'r' then
  last = now
end

-- The ranks of the page: from `start`, and before `stop_rank`.
local start = 0
if first ~= '-inf' then
  start = redis.call('ZCOUNT', zset, '-inf', now)
end
if ARGV[4] then
  start = math.max(start, rank_after(zset, ARGV[4], string.sub(ARGV[5], 3)))
end
local stop_rank = redis.call('ZCOUNT', zset, '-inf', last)
local entries = {}
if start < stop_rank then
  entries = redis.call('ZRANGE', zset, start, math.min(stop_rank, start + limit) - 1, 'WITHSCORES')
end

local reply, taken, repaired = { '0' }, 0, false
for i = 1, #entries / 2 do
  local handle = entries[2 * i - 1]
  local record = redis.call('HGET', partition.job, handle)
  if #handle ~= HANDLE_BYTES or not record then
    quarantine(partition, handle, score_time(entries[2 * i]))
    redis.call('ZREM', zset, handle)
    repaired = true
  elseif round_score(zset, handle, entries[2 * i]) then
    repaired = true
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
-- A repair has changed the ranks of other entries, so the page is read again.
if repaired then
  return nil
end
if start + taken < stop_rank then
  reply[1] = '1'
end
return reply
