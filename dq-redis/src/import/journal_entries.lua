-- Lists entries of the journal, a hash from job ids (16 bytes) to entries.
--
-- KEYS     the journal
-- ARGV     maximum number of entries
-- returns  id, entry, id, entry, ...; an entry is its stage ('T' taken from the source, 'S' stored
--          in the target, too), then the packed job (`ImportJob::to_record`)
-- cost     O(n) of the journal, which holds one batch for each import that runs or was interrupted

local listed = {}
for i, id in ipairs(redis.call('HKEYS', KEYS[1])) do
  if i > tonumber(ARGV[1]) then
    break
  end
  listed[#listed + 1] = id
  listed[#listed + 1] = redis.call('HGET', KEYS[1], id)
end
return listed
