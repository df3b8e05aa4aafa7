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

-- The group of a leased job.
ALTER TABLE {p}lease ADD COLUMN grp TEXT;
CREATE INDEX {p}lease_group ON {p}lease (q, grp) WHERE grp IS NOT NULL;

-- Due jobs of full groups, in each group's order. A live job is here, in the due table, or in the lease
-- table. When a job of the group has run, the first one returns to the due table.
CREATE TABLE {p}parked (
    q   INTEGER NOT NULL,
    grp TEXT NOT NULL,
    at  INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (q, grp, at, seq)
) WITHOUT ROWID;
CREATE INDEX {p}parked_at ON {p}parked (q, at, seq);
