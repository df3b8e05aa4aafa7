-- Lists jobs in one state, in order of time and handle or in the opposite order.
--
-- ARGV     1  state: 's' scheduled, 'r' ready, 'l' leased, 'd' dead, 'e' ended
--          2  'a' ascending or 'd' descending; then 'p' if records are to include payloads
--          3  maximum number of jobs
--          4  maximum bytes of records, unless the first is larger
--          5 and 6  the limit of the history: jobs, milliseconds
--          7 and 8  time and position of the last job of the previous page; none for the first
-- returns  nil: repeat the call (entries were repaired); else {'1' if there are more jobs, else '0';
--          then for each job: handle, position, time (due, end of the lease, death or end), record (or
--          past job), state or '', reason or ''}. The position breaks ties of equal times: two zero
--          bytes and the handle
-- cost     O(log n) a job; for later pages also O(log n · log m) with m jobs of the last job's time

local state, limit, bytes_left = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local is_descending, with_payload = string.sub(ARGV[2], 1, 1) == 'd', #ARGV[2] == 2
read_history_limit(ARGV[5], ARGV[6])
local zset, hash = zset_of(partition, state), state == 'e' and partition.past or partition.job
local first, stop =
  listed_ranks(zset, state, is_descending, ARGV[7], ARGV[8] and handle_at(ARGV[8]))
local entries = entries_at(zset, first, stop, limit, is_descending)
local more = stop - first > #entries / 2

-- A repair changes the ranks of other entries, so the page is then read again.
local found, repaired = {}, false
for i = 1, #entries / 2 do
  local handle, at = entries[2 * i - 1], entries[2 * i]
  if #handle ~= HANDLE_BYTES or redis.call('HSTRLEN', hash, handle) == 0 then
    -- The history has no quarantine: see library/keys.lua.
    if state ~= 'e' then
      quarantine(partition, handle, score_time(at))
    end
    redis.call('ZREM', zset, handle)
    repaired = true
  elseif round_score(zset, handle, at) then
    -- It may have changed the scores of the entries that follow, too.
    repaired = true
    break
  end
  found[i] = { at = at, handle = handle, number = i }
end
if state == 's' or state == 'r' then
  local more_members, repaired_members =
    add_members(found, partition, state, limit, is_descending, ARGV[7], ARGV[8])
  more, repaired = more or more_members, repaired or repaired_members
end
if repaired then
  return nil
end

local reply, taken = { '0' }, 0
for _, item in ipairs(found) do
  if taken == limit then
    break
  end
  local handle, record = item.handle, nil
  if item.member then
    handle, record = read_member(partition, item, with_payload)
  else
    record = redis.call('HGET', hash, handle)
  end
  if taken > 0 and #record > bytes_left then
    break
  end
  bytes_left = bytes_left - #record
  if item.member then
    add_listed_member(reply, item, handle, record)
  else
    add_listed(reply, partition, state, handle, item.at, record, with_payload)
  end
  taken = taken + 1
end
if more or taken < #found then
  reply[1] = '1'
end
return reply
