-- Moves elements of a list into the journal (see journal_entries.lua). Of equal elements the first
-- one is taken.
--
-- KEYS     the list, the journal
-- ARGV     '1'; then for each element: the id of its job, the element, the packed job
-- returns  'Y' for each element that was taken, 'N' for one that is gone
-- cost     O(elements before the one taken)

local list, journal = KEYS[1], KEYS[2]
local answers = {}
for i = 2, #ARGV, 3 do
  local id, element, record = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  -- This comes first, so that nothing is removed if the journal's key has another type.
  redis.call('HSET', journal, id, 'T' .. record)
  local is_taken = redis.call('LREM', list, ARGV[1], element) == 1
  if not is_taken then
    redis.call('HDEL', journal, id)
  end
  answers[#answers + 1] = is_taken and 'Y' or 'N'
end
return table.concat(answers)
