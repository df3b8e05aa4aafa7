-- Lists jobs of one partition in one state, in order of time and handle or in the opposite order.
--
-- KEYS     the keys of the partition
-- ARGV     1  state: 's' scheduled, 'r' ready, 'l' leased, 'd' dead, 'e' ended
--          2  'a' ascending or 'd' descending; then 'p' if records are to include payloads
--          3  maximum number of jobs
--          4  maximum bytes of records, unless the first is larger
--          5 and 6  the limit of the history: jobs, milliseconds
--          7  time and 8 position (16 bytes) of the last job of the previous page; none for the
--             first
-- returns  nil: repeat the call (expired leases, or entries that were repaired); CLOSED, FORMAT: see
--          requeue_expired; else {'1' if there are more jobs, else '0'; then for each job:
--          handle, position, time, record, state or '', reason or ''}. The time is the due time, the
--          end of the lease, the time of death or of the end. The position breaks ties of equal
--          times: two zero bytes and the handle. For a job that has ended, the past job is in place
--          of the record.
-- cost     O(log n) a job; for every page but the first also O(log n · log m), where m jobs have the
--          same time as the last job of the page before

local partition = partition_at(0, KEYS_PER_PARTITION)
local stop, early_reply = requeue_expired(partition, 'read')
if stop then
  return early_reply
end

local state, limit, bytes_left = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local is_descending, with_payload = string.sub(ARGV[2], 1, 1) == 'd', #ARGV[2] == 2
read_history_limit(ARGV[5], ARGV[6])
local zset = zset_of(partition, state)
local ranks = { listed_ranks(zset, state, is_descending, ARGV[7], ARGV[8] and string.sub(ARGV[8], 3)) }
local entries = entries_at(zset, ranks[1], ranks[2], limit, is_descending)

local hash = state == 'e' and partition.past or partition.job
local reply, taken, repaired = { '0' }, 0, false
for i = 1, #entries / 2 do
  local handle, at = entries[2 * i - 1], entries[2 * i]
  local record = redis.call('HGET', hash, handle)
  if #handle ~= HANDLE_BYTES or not record then
    -- The history has no quarantine: see library/keys.lua.
    if state ~= 'e' then
      quarantine(partition, handle, score_time(at))
    end
    redis.call('ZREM', zset, handle)
    repaired = true
  elseif round_score(zset, handle, at) then
    -- It may have changed the scores of the entries that follow, too, so those read above do not count.
    repaired = true
    break
  else
    if taken > 0 and #record > bytes_left then
      break
    end
    bytes_left = bytes_left - #record
    add_listed(reply, partition, state, handle, at, record, with_payload)
  end
  taken = taken + 1
end
-- A repair has changed the ranks of other entries, so the page is read again.
if repaired then
  return nil
end
if ranks[1] + taken < ranks[2] then
  reply[1] = '1'
end
return reply
