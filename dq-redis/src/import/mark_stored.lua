-- Marks journal entries as stored in the target: stage 'S' (see journal_entries.lua).
--
-- KEYS     the journal
-- ARGV     ids of jobs
-- returns  'Y' for each id that is in the journal, 'N' for each other one
-- cost     O(1) an id

local answers = {}
for i, id in ipairs(ARGV) do
  local entry = redis.call('HGET', KEYS[1], id)
  if entry then
    redis.call('HSET', KEYS[1], id, 'S' .. entry:sub(2))
  end
  answers[i] = entry and 'Y' or 'N'
end
return table.concat(answers)
