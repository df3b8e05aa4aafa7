-- Version 2. Queues with limits, or that had some, and handlers' throttles. `declared` and `overriding`
-- are JSON objects with the runners' and an operator's limits. `used` is what the rate has used, in Unix
-- microseconds. No job of the queue starts before `closed_until`.
CREATE TABLE {p}flow (
    q            INTEGER PRIMARY KEY,
    declared     TEXT NOT NULL DEFAULT '{}',
    overriding   TEXT,
    used         INTEGER NOT NULL DEFAULT 0,
    closed_until INTEGER
);
