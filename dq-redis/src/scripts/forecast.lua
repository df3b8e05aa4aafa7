-- Counts waiting jobs by due time.
--
-- ARGV     times in ascending order (at most 1,001)
-- returns  for each pair of neighbouring times, the number of jobs that are due from the first until
--          before the second
-- cost     O(log n) a time

local counts = {}
for i = 1, #ARGV - 1 do
  counts[i] = count_due(partition, ARGV[i], ARGV[i + 1])
end
return counts
