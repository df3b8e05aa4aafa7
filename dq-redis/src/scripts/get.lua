-- Reads one job.
--
-- ARGV     1  the job: 'i' and handle and tail, or 'k' and a key
--          2  maximum age of a job in the history, in milliseconds; -1 for no history
-- returns  see library/view.lua
-- cost     O(log n)

local handle, entry = find_job(partition, ARGV[1])
if entry then
  return view_member(entry)
elseif not handle then
  return view_past(partition, ARGV[1], tonumber(ARGV[2]))
end
return view(partition, handle)
