-- Searches Redisson's sorted set for a job that Java scheduled, some members at a time, and adds it
-- to the index, where the other scripts find it. (Words: see keys.lua.)
--
-- ARGV     handle and tail in one string; cursor of ZSCAN ('0' at first); about how many
--          members to read
-- returns  FORMAT: see refuse_format; '': the job was found; '0': there is no such member; else the
--          cursor for the next call
-- cost     O(members read)

local partition = partition_at(0)
local refusal = refuse_format(redis.call('HGET', partition.meta, 'format'), 'write')
if refusal then
  return refusal
end
local handle, tail = string.sub(ARGV[1], 1, 14), string.sub(ARGV[1], 15)
local member_id = member_id_of(join_id(handle, tail))
local prefix = member_prefix(member_id)
local page = redis.call('ZSCAN', partition.timeout, ARGV[2], 'COUNT', ARGV[3])
for i = 1, #page[2], 2 do
  if string.sub(page[2][i], 1, #prefix) == prefix then
    local record_prefix = java_record(tail, '')
    -- find_member finds the member by the entry's due time, so its score must be a whole number.
    local member, score = page[2][i], page[2][i + 1]
    local due = round_score(partition.timeout, member, score) or tonumber(score)
    redis.call('HSET', partition.index, member_id, pack_entry(due, handle, record_prefix))
    return ''
  end
end
return page[1]
