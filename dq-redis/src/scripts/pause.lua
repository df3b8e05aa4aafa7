-- Pauses or resumes one partition, for every process.
--
-- ARGV     1  the channel, for the wake-up when the partition is resumed
--          2  '1' to pause, '0' to resume
-- returns  1 if the call changed anything, or 0
-- cost     O(1)

if ARGV[2] == '1' then
  return redis.call('HSETNX', partition.meta, 'paused', 1)
end
local changed = redis.call('HDEL', partition.meta, 'paused')
if changed == 1 then
  -- Runners look at once, whatever is due when.
  look_at(partition, now)
  redis.call('PUBLISH', ARGV[1], string.format('%.0f', now))
end
return changed
