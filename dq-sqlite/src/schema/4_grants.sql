-- Version 4: when a lease was granted or last renewed, so that it lasts no longer than it was granted
-- for if the clock is set back. 0 if that is unknown: older versions do not store it. `meta` has the
-- time of the latest of all grants and renewals; if that has passed, so have all.

ALTER TABLE {p}lease ADD COLUMN granted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {p}meta ADD COLUMN granted INTEGER NOT NULL DEFAULT 0;
