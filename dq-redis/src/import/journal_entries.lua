-- Lists entries of the journal.
--
-- KEYS     the journal
-- ARGV     most entries
-- returns  id, entry, id, entry, ...; an entry is its stage, 'T' taken or 'S' stored, and the record
-- cost     O(n) of the journal, which holds one batch for each interrupted import

local listed = {}
for i, id in ipairs(redis.call('HKEYS', KEYS[1])) do
  if i > tonumber(ARGV[1]) then
    break
  end
  listed[#listed + 1] = id
  listed[#listed + 1] = redis.call('HGET', KEYS[1], id)
end
return listed
