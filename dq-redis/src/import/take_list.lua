-- Takes elements out of a list and into the journal. Equal elements are as good as each other, so
-- the first one that is still there is taken.
--
-- KEYS     the list, the journal
-- ARGV     for each element its new id, the element, the record
-- returns  'Y' for each element that was taken, 'N' for one of which none is left
-- cost     the elements up to the one taken

local list, journal = KEYS[1], KEYS[2]
local answers = {}
for i = 1, #ARGV, 3 do
  local id, element, record = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  -- First, so that nothing is gone if the journal's key holds something else.
  redis.call('HSET', journal, id, 'T' .. record)
  if redis.call('LREM', list, 1, element) == 1 then
    answers[#answers + 1] = 'Y'
  else
    redis.call('HDEL', journal, id)
    answers[#answers + 1] = 'N'
  end
end
return table.concat(answers)
