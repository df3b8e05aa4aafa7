-- Moves jobs of one queue in time.
--
-- KEYS     the keys of the queue
-- ARGV     the channel; then for each job (at most 100): which ('i' and handle and tail, or 'k' and a key), due time
-- returns  nil: ask again; else for each job: 'M' moved | 'N' not found | 'A' running,
--          handle and tail, due time; then the layout if it is not the one believed in and something
--          was not found
-- cost     O(log n) a job

local lane = lane_at(0, WIDTH)
if reclaim(lane) then
  return nil
end

local answers, moved, missed = {}, {}, false
for i = 1, (#ARGV - 1) / 2 do
  local handle = find(lane, ARGV[2 * i])
  local code, name, due = 'N', '', 0
  if handle then
    if redis.call('ZSCORE', lane.due, handle) then
      code, due = 'M', resolve(ARGV[2 * i + 1])
      name = handle .. record_tail(redis.call('HGET', lane.job, handle))
      redis.call('ZADD', lane.due, due, handle)
      moved[#moved + 1], moved[#moved + 2] = due, handle
    elseif redis.call('ZSCORE', lane.lease, handle) then
      code = 'A'
    end
  else
    missed = true
  end
  local at = #answers
  answers[at + 1], answers[at + 2], answers[at + 3] = code, name, due
end
announce(ARGV[1], lane.due, moved)
answers[#answers + 1] = missed and other_layout(lane) or nil
return answers
