-- Moves entries of a sorted set into the journal (see journal_entries.lua).
--
-- KEYS     the sorted set, the journal, and for Redisson the order list
-- ARGV     from which end LREM searches the order list: 1 its front, -1 its end; then for each
--          entry: the id of its job; its score when it was listed, a space and the member; the
--          packed job
-- returns  'Y' for each entry that was taken, 'N' for one that is gone or has another score
-- cost     O(log n) an entry; with an order list O(elements before the entry)

local set, journal, order = KEYS[1], KEYS[2], KEYS[3]
local answers = {}
for i = 2, #ARGV, 3 do
  local id, token, record = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local space = string.find(token, ' ', 1, true)
  local score, member = string.sub(token, 1, space - 1), string.sub(token, space + 1)
  local present = redis.call('ZSCORE', set, member)
  if present and tonumber(present) == tonumber(score) then
    -- This comes first, so that nothing is removed if the journal's key has another type.
    redis.call('HSET', journal, id, 'T' .. record)
    redis.call('ZREM', set, member)
    if order then
      redis.call('LREM', order, ARGV[1], member)
    end
    answers[#answers + 1] = 'Y'
  else
    answers[#answers + 1] = 'N'
  end
end
return table.concat(answers)
