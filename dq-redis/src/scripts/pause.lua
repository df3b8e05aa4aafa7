-- Pauses or resumes one partition, for every process. Resuming also opens a queue that a handler has
-- throttled.
--
-- ARGV     1  the channel, for the wake-up when the partition is resumed
--          2  '1' to pause, '0' to resume, 'close' to let no job start before a time
--          3  that time, or '+' and a delay in milliseconds
-- returns  1 if the call changed anything, or 0
-- cost     O(1)

if ARGV[2] == 'close' then
  close_until(partition, tonumber(resolve_due(ARGV[3])))
  return 1
elseif ARGV[2] == '1' then
  return redis.call('HSETNX', partition.meta, 'paused', 1)
end
local closed_until = partition.flow and redis.call('HGET', partition.flow, 'closed_until')
local changed = redis.call('HDEL', partition.meta, 'paused')
if closed_until then
  redis.call('HDEL', partition.flow, 'closed_until')
  changed = (tonumber(closed_until) or 0) > now and 1 or changed
end
if changed == 1 then
  -- Runners look at once, whatever is due when.
  look_at(partition, now)
  redis.call('PUBLISH', ARGV[1], string.format('%.0f', now))
end
return changed
