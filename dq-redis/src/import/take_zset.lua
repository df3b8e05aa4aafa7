-- Takes entries out of a sorted set and into the journal.
--
-- KEYS     the sorted set, the journal, and with Redisson the order list
-- ARGV     from which end the order list is searched (1 or -1); then for each entry its new id, its
--          score as it was listed, the member, the record
-- returns  'Y' for each entry that was taken, 'N' for one that is gone or has another score
-- cost     O(log n) an entry; with an order list, its elements up to the entry

local set, journal, order = KEYS[1], KEYS[2], KEYS[3]
local answers = {}
for i = 2, #ARGV, 4 do
  local id, score, member, record = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local present = redis.call('ZSCORE', set, member)
  if present and tonumber(present) == tonumber(score) then
    -- First, so that nothing is gone if the journal's key holds something else.
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
