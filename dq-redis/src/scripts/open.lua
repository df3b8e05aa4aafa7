-- Begins the scripts on one partition, whose keys are KEYS. A line before sets ACCESS. The script
-- replies with nil (repeat the call: more leases have expired than one call ends), CLOSED or FORMAT
-- instead of its own reply: see requeue_expired in library/access.lua.

local partition = partition_at(0)
local stop, early_reply = requeue_expired(partition, ACCESS)
if stop then
  return early_reply
end

