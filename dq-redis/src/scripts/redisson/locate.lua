-- Looks for a job that nobody noted, some members at a time, and notes it if it is there.
--
-- KEYS     the keys of the queue
-- ARGV     handle and tail; cursor ('0' at first); most members to look at
-- returns  '' found; else the cursor to go on from, '0' when there is none
-- cost     O(members looked at)

local partition = java_at(0)
local handle, tail = string.sub(ARGV[1], 1, 14), string.sub(ARGV[1], 15)
local mark = mark_of(unfold(handle, tail))
local front = front_of(mark)
local found = redis.call('ZSCAN', partition.timeout, ARGV[2], 'COUNT', ARGV[3])
for i = 1, #found[2], 2 do
  if string.sub(found[2][i], 1, #front) == front then
    local header = struct.pack('>I6', now) .. tail .. '\0'
    -- It is found again by its score, so that must be a number that can be noted.
    local due = round_score(partition.timeout, found[2][i], found[2][i + 1]) or tonumber(found[2][i + 1])
    redis.call('HSET', partition.outside, mark, pack_note(due, handle, header))
    return ''
  end
end
return found[1]
