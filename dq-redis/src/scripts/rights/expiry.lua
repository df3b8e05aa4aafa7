-- The commands of the key expiry backend. The key expires a millisecond later.
local wanted = { { 'SET', KEYS[1], '', 'PX', 1 }, { 'TOUCH', KEYS[1] } }
