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

-- As in version 1, and an ended run returns a parked job.
DROP TRIGGER {p}done_v1_insert;
CREATE TRIGGER {p}done_v1_insert INSTEAD OF INSERT ON {p}done_v1
BEGIN
    SELECT RAISE(ABORT, 'dq: the lease of the job is lost')
        WHERE NOT EXISTS (
            SELECT 1 FROM {p}job AS job JOIN {p}lease AS lease ON lease.seq = job.seq
            WHERE job.id = NEW.id AND lease.token = NEW.token
              AND lease.until > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER));
    -- The id may have ended before, perhaps in another queue.
    UPDATE {p}queue SET ended = ended - 1
        WHERE NEW.history AND q = (SELECT q FROM {p}ended WHERE id = NEW.id);
    DELETE FROM {p}ended WHERE NEW.history AND id = NEW.id;
    INSERT INTO {p}ended (q, at, seq, id, key, due, first_due, created, attempts, deliveries, losses,
            max_attempts, started, worker, last_error, ending)
        SELECT job.q, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER), job.seq, job.id, job.key,
            job.due, job.first_due, job.created, job.attempts, job.deliveries + 1, job.losses,
            job.max_attempts, lease.since, lease.worker, note.last_error, 'done'
        FROM {p}job AS job JOIN {p}lease AS lease ON lease.seq = job.seq
            LEFT JOIN {p}note AS note ON note.seq = job.seq
        WHERE NEW.history AND job.id = NEW.id;
    INSERT INTO {p}pin (id, due, until)
        SELECT job.id, job.due,
            CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + note.remember
        FROM {p}job AS job JOIN {p}note AS note ON note.seq = job.seq
        WHERE job.id = NEW.id AND note.remember > 0
        ON CONFLICT (id) DO UPDATE SET due = excluded.due, until = excluded.until;
    UPDATE {p}queue SET done = done + 1, ended = ended + NEW.history
        WHERE q = (SELECT q FROM {p}job WHERE id = NEW.id);
    -- The first parked job of the group returns.
    INSERT OR IGNORE INTO {p}due (q, at, seq)
        SELECT parked.q, parked.at, parked.seq FROM {p}parked AS parked JOIN {p}lease AS lease
            ON lease.q = parked.q AND lease.grp = parked.grp
        WHERE lease.seq = (SELECT seq FROM {p}job WHERE id = NEW.id)
        ORDER BY parked.at, parked.seq LIMIT 1;
    DELETE FROM {p}parked WHERE (q, grp, at, seq) = (
        SELECT parked.q, parked.grp, parked.at, parked.seq FROM {p}parked AS parked
            JOIN {p}lease AS lease ON lease.q = parked.q AND lease.grp = parked.grp
        WHERE lease.seq = (SELECT seq FROM {p}job WHERE id = NEW.id)
        ORDER BY parked.at, parked.seq LIMIT 1);
    DELETE FROM {p}note WHERE seq = (SELECT seq FROM {p}job WHERE id = NEW.id);
    DELETE FROM {p}lease WHERE seq = (SELECT seq FROM {p}job WHERE id = NEW.id);
    DELETE FROM {p}job WHERE id = NEW.id;
END;
