-- Moves elements of a list into the journal (see journal_entries.lua). Of equal elements the first
-- one is taken.
--
-- KEYS     the list, the journal
-- ARGV     for each element: the id of its job, the element, the packed job
-- returns  'Y' for each element that was taken, 'N' for one that is gone
-- cost     O(elements before the one taken)

local list, journal = KEYS[1], KEYS[2]
local answers = {}
for i = 1, #ARGV, 3 do
  local id, element, record = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  -- First, so that nothing is removed if the journal's key has another type.
  redis.call('HSET', journal, id, 'T' .. record)
  if redis.call('LREM', list, 1, element) == 1 then
    answers[#answers + 1] = 'Y'
  else
    redis.call('HDEL', journal, id)
    answers[#answers + 1] = 'N'
  end
end
return table.concat(answers)
