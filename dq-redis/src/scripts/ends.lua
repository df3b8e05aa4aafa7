-- Counts the jobs in the history of one partition that ended after a position.
--
-- ARGV     1 and 2  the limit of the history: jobs, milliseconds
--          3  time and 4 position of a job (two zero bytes and the handle, see browse.lua); none
--          to count all
-- returns  the number of jobs
-- cost     O(log n), or after a job O(log n · log m) with m jobs of its time

read_history_limit(ARGV[1], ARGV[2])
local last_handle = ARGV[4] and string.sub(ARGV[4], 3)
local first, stop = listed_ranks(partition.ended, 'e', false, ARGV[3], last_handle)
return math.max(0, stop - first)
