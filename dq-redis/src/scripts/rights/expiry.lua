-- The commands that `redis-expiry` runs beyond those of native.lua; try.lua, which follows, runs
-- them to find missing rights. They leave nothing behind: KEYS[1], a test key, expires after one
-- millisecond.
local wanted = { { 'SET', KEYS[1], '', 'PX', 1 }, { 'TOUCH', KEYS[1] } }
