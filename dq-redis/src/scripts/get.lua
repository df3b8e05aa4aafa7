-- Looks at one job.
--
-- KEYS     the keys of the queue
-- ARGV     which: 'i' and handle and tail, or 'k' and a key
-- returns  nil: ask again; {} if there is none, or {layout} if it is not the one believed in; else {now, handle, state: 'w' waiting, 'l' leased,
--          'd' dead, time of that, record, state or '', reason or ''}
-- cost     O(log n)

local lane = lane_at(0, WIDTH)
if reclaim(lane) then
  return nil
end

local handle = find(lane, ARGV[1])
if not handle then
  return { other_layout(lane) }
end
return view(lane, handle)
