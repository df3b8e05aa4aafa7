-- Reads the index of queues: which of them a claim has to look at now, and which later.
--
-- KEYS     1  the index of queues
-- ARGV     1  maximum number of entries that are due
--          2  maximum number of later entries
-- returns  {now, number of entries that are due, the entries that are due …, then for each later
--          entry: the entry, when to look at it}; {now} if the key has another type
-- cost     O(log n) and the number of entries returned

local due = redis.pcall('ZRANGEBYSCORE', KEYS[1], '-inf', now_text, 'LIMIT', '0', ARGV[1])
if due.err then
  return { now }
end
local later = redis.call(
  'ZRANGEBYSCORE', KEYS[1], '(' .. now_text, '+inf', 'WITHSCORES', 'LIMIT', '0', ARGV[2])
local reply = { now, #due }
for _, entries in ipairs({ due, later }) do
  for _, entry in ipairs(entries) do
    reply[#reply + 1] = entry
  end
end
return reply
