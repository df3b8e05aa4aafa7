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

local page = {
  state = ARGV[1], is_descending = string.sub(ARGV[2], 1, 1) == 'd', with_payload = #ARGV[2] == 2,
  limit = tonumber(ARGV[3]), time = ARGV[7], position = ARGV[8],
}
local bytes_left = tonumber(ARGV[4])
read_history_limit(ARGV[5], ARGV[6])
local found, has_more, is_repaired = listed_jobs(partition, page)
if is_repaired then
  return nil
end

local reply, listed = { '0' }, 0
for _, entry in ipairs(found) do
  if listed == page.limit then
    break
  end
  local record, state, reason = read_listed(partition, page, entry)
  if listed > 0 and #record > bytes_left then
    break
  end
  bytes_left = bytes_left - #record
  if not page.with_payload and page.state ~= 'e' then
    record = without_payload(record)
  end
  for _, item in ipairs({ entry.handle, entry.position, entry.time, record, state, reason }) do
    reply[#reply + 1] = item
  end
  listed = listed + 1
end
if has_more or listed < #found then
  reply[1] = '1'
end
return reply
