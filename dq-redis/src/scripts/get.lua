-- Reads one job.
--
-- ARGV     1  the job: 'i' and handle and tail, or 'k' and a key
--          2  maximum age of a job in the history, in milliseconds; -1 for no history
-- returns  see view_job and view_past in library/find.lua
-- cost     O(log n)

local job = find_job(partition, ARGV[1])
if job then
  return view_job(partition, job)
end
return view_past(partition, ARGV[1], tonumber(ARGV[2]))
