-- What alarms and the canary take. The key is gone a millisecond later.
local wanted = { { 'SET', KEYS[1], '', 'PX', 1 }, { 'TOUCH', KEYS[1] } }
