-- Searches Java's sorted set for a job that is not in the index, some members at a time, and adds it to
-- the index.
--
-- KEYS     the keys of the queue
-- ARGV     handle and tail; cursor ('0' at first); how many members to read
-- returns  '' found; else the next cursor, '0' at the end
-- cost     O(members read)

local partition = redisson_partition_at(0)
local handle, tail = string.sub(ARGV[1], 1, 14), string.sub(ARGV[1], 15)
local member_id = member_id_of(join_id(handle, tail))
local prefix = member_prefix(member_id)
local found = redis.call('ZSCAN', partition.timeout, ARGV[2], 'COUNT', ARGV[3])
for i = 1, #found[2], 2 do
  if string.sub(found[2][i], 1, #prefix) == prefix then
    local header = struct.pack('>I6', now) .. tail .. '\0'
    -- The index refers to the member by its score, which must be a whole number for that.
    local due = round_score(partition.timeout, found[2][i], found[2][i + 1]) or tonumber(found[2][i + 1])
    redis.call('HSET', partition.index, member_id, pack_entry(due, handle, header))
    return ''
  end
end
return found[1]
