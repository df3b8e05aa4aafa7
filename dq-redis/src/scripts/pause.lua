-- Pauses or resumes one partition, for every process.
--
-- KEYS     the keys of the partition
-- ARGV     1  the channel, for the wake-up when the partition is resumed
--          2  '1' to pause, '0' to resume
-- returns  nil: repeat the call (expired leases); CLOSED, FORMAT: see requeue_expired; else 1 if the
--          call changed anything, or 0
-- cost     O(1)

local partition = partition_at(0, KEYS_PER_PARTITION)
local stop, reply = requeue_expired(partition, 'write')
if stop then
  return reply
end

if ARGV[2] == '1' then
  return redis.call('HSETNX', partition.meta, 'paused', 1)
end
local changed = redis.call('HDEL', partition.meta, 'paused')
if changed == 1 then
  -- At once, whatever is due when: runners look.
  look_at(partition, now)
  redis.call('PUBLISH', ARGV[1], string.format('%.0f', now))
end
return changed
