-- Finds pinned ids in all shards of a queue: see pins.rs.
--
-- KEYS     the keys of a partition
-- ARGV     'mark'       marks the queue as having pins; on the unsharded partition only
--          'is_marked'  on the unsharded partition only
--          'find', then handle and tail of each job (at most 100), in one string
-- returns  FORMAT: see refuse_format, but not to 'is_marked', which asks for a setting of the queue;
--          'mark': 1; 'is_marked': 1 if the queue is marked, else 0; 'find': for each job the due time
--          of the ended job whose id is pinned, or nil
-- cost     O(1) a job

local partition = partition_at(0)
if ARGV[1] == 'is_marked' then
  return redis.call('HGET', partition.meta, 'pins') and 1 or 0
end
local refusal = refuse_format(redis.call('HGET', partition.meta, 'format'), 'write')
if refusal then
  return refusal
elseif ARGV[1] == 'mark' then
  redis.call('HSET', partition.meta, 'pins', 1)
  return 1
end
local handles, dues = {}, {}
for i = 2, #ARGV do
  handles[i - 1], dues[i - 1] = string.sub(ARGV[i], 1, HANDLE_BYTES), false
end
local pinned = find_pinned(partition, handles, 1, #handles) or {}
for i = 1, #pinned do
  dues[i] = pinned_due(pinned[i], string.sub(ARGV[i + 1], HANDLE_BYTES + 1)) or false
end
return dues
