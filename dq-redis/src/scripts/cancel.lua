-- Takes jobs of one queue back.
--
-- KEYS     the keys of the queue
-- ARGV     the jobs (at most 100): 'i' and handle and tail, or 'k' and a key
-- returns  nil: ask again; else a string with 'C' cancelled, 'N' not found, 'A' running for each, then
--          the layout if it is not the one believed in and something was not found
-- cost     O(log n) a job

local lane = lane_at(0, WIDTH)
if reclaim(lane) then
  return nil
end

local answers, cancelled, missed = {}, 0, false
for i, target in ipairs(ARGV) do
  local handle = find(lane, target)
  if not handle then
    answers[i], missed = 'N', true
  elseif redis.call('ZREM', lane.due, handle) == 1 then
    erase(lane, handle, record_key(redis.call('HGET', lane.job, handle)))
    cancelled = cancelled + 1
    answers[i] = 'C'
  elseif redis.call('ZSCORE', lane.lease, handle) then
    answers[i] = 'A'
  else
    answers[i] = 'N'
  end
end
count(lane, 'cancelled', cancelled)
return table.concat(answers) .. (missed and other_layout(lane) or '')
