-- Version 1. {p} stands for the prefix. All times are Unix milliseconds.

-- One row: the version of the tables and the oldest versions that may write and read them, the random
-- id of the store, the last `seq` and token that were issued, and the time of the latest grant or
-- renewal of a lease. A `seq` numbers the jobs of all queues in the order of their insertion; jobs that
-- are due at the same time run in that order.
CREATE TABLE {p}meta (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    version    INTEGER NOT NULL,
    min_writer INTEGER NOT NULL,
    min_reader INTEGER NOT NULL,
    store      BLOB NOT NULL,
    seq        INTEGER NOT NULL,
    token      INTEGER NOT NULL,
    granted    INTEGER NOT NULL
);

-- Queues, which other tables refer to by the small number q, with their total counts since the
-- queue was created. `ended` counts the rows of the queue in the `ended` table. Rows are never deleted.
CREATE TABLE {p}queue (
    q         INTEGER PRIMARY KEY,
    name      TEXT NOT NULL UNIQUE,
    paused    INTEGER NOT NULL DEFAULT 0,
    created   INTEGER NOT NULL DEFAULT 0,
    done      INTEGER NOT NULL DEFAULT 0,
    skipped   INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    replaced  INTEGER NOT NULL DEFAULT 0,
    removed   INTEGER NOT NULL DEFAULT 0,
    ended     INTEGER NOT NULL DEFAULT 0
);

-- Live jobs: waiting or leased. `first_due` is null, here and in the other tables, until a retry or a
-- snooze changes `due`. The payload is the last column, so that the others are read without it.
CREATE TABLE {p}job (
    seq          INTEGER PRIMARY KEY,
    id           BLOB NOT NULL,
    q            INTEGER NOT NULL,
    key          TEXT,
    due          INTEGER NOT NULL,
    first_due    INTEGER,
    created      INTEGER NOT NULL,
    attempts     INTEGER NOT NULL DEFAULT 0,
    deliveries   INTEGER NOT NULL DEFAULT 0,
    losses       INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER,
    headers      TEXT,
    payload      BLOB NOT NULL
);
CREATE UNIQUE INDEX {p}job_id ON {p}job (id);
CREATE UNIQUE INDEX {p}job_key ON {p}job (q, key) WHERE key IS NOT NULL;

-- Waiting jobs, clustered by due time (`at`). A live job is either here or in the lease table.
CREATE TABLE {p}due (
    q   INTEGER NOT NULL,
    at  INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (q, at, seq)
) WITHOUT ROWID;

-- Leases of running jobs. `since` is when a lease was granted, `granted` when it was granted or last
-- renewed, so that it lasts no longer than it was granted for if the clock is set back. The rows are
-- small, so a claim does not write the wide row of the job.
CREATE TABLE {p}lease (
    seq     INTEGER PRIMARY KEY,
    q       INTEGER NOT NULL,
    until   INTEGER NOT NULL,
    token   INTEGER NOT NULL,
    worker  TEXT NOT NULL,
    granted INTEGER NOT NULL,
    since   INTEGER NOT NULL
);
CREATE INDEX {p}lease_until ON {p}lease (until, q);

-- Dead jobs, kept until an operator replays or removes them. `died` is the time of death; `kind`
-- and `message` are its reason.
CREATE TABLE {p}dead (
    seq          INTEGER PRIMARY KEY,
    id           BLOB NOT NULL,
    q            INTEGER NOT NULL,
    key          TEXT,
    due          INTEGER NOT NULL,
    first_due    INTEGER,
    created      INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    deliveries   INTEGER NOT NULL,
    losses       INTEGER NOT NULL,
    max_attempts INTEGER,
    died         INTEGER NOT NULL,
    kind         TEXT NOT NULL,
    message      TEXT NOT NULL,
    headers      TEXT,
    payload      BLOB NOT NULL
);
CREATE INDEX {p}dead_died ON {p}dead (q, died, seq);
CREATE UNIQUE INDEX {p}dead_id ON {p}dead (id);

-- What few jobs have, live or dead: how long their id is pinned after their end, in milliseconds, the
-- start and the holder of their last lease that has ended, and the error of their last run that
-- failed. A table of its own, so that a job that has not run needs no row.
CREATE TABLE {p}note (
    seq        INTEGER PRIMARY KEY,
    remember   INTEGER NOT NULL DEFAULT 0,
    started    INTEGER,
    worker     TEXT,
    last_error TEXT
);

-- Jobs that have ended, clustered by the time of the end. The queue's oldest rows are deleted beyond
-- its history limit. `ending` and `reason` say how and why the job ended; `started` and `worker` are
-- those of its last lease.
CREATE TABLE {p}ended (
    q            INTEGER,
    at           INTEGER,
    seq          INTEGER,
    id           BLOB,
    key          TEXT,
    due          INTEGER,
    first_due    INTEGER,
    created      INTEGER,
    attempts     INTEGER,
    deliveries   INTEGER,
    losses       INTEGER,
    max_attempts INTEGER,
    started      INTEGER,
    worker       TEXT,
    last_error   TEXT,
    ending       TEXT,
    reason       TEXT,
    PRIMARY KEY (q, at, seq)
) WITHOUT ROWID;
CREATE UNIQUE INDEX {p}ended_id ON {p}ended (id);

-- Ids that cannot be scheduled until a time, each with the due time of the job that has ended.
CREATE TABLE {p}pin (
    id    BLOB PRIMARY KEY,
    due   INTEGER NOT NULL,
    until INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX {p}pin_until ON {p}pin (until);

-- Runners that have announced themselves.
CREATE TABLE {p}runner (
    name  TEXT PRIMARY KEY,
    info  BLOB NOT NULL,
    at    INTEGER NOT NULL,
    until INTEGER NOT NULL
);

-- Scheduling in plain SQL, for other drivers and languages. The view's name contains the version of
-- this public interface.
CREATE VIEW {p}schedule_v1 (queue, id, key, due, payload, headers, max_attempts) AS
    SELECT queue.name, job.id, job.key, job.due, job.payload, job.headers, job.max_attempts
    FROM {p}job AS job JOIN {p}queue AS queue ON queue.q = job.q;

-- Duplicates are excluded by NOT EXISTS and not by OR IGNORE, because a conflict clause of the
-- caller's INSERT would override one in the trigger.
--
-- SQLite stores any bytes as text, but no API call could name a queue or key that is not UTF-8. So
-- names beyond ASCII are checked character by character: decoding and encoding a character yields
-- the same bytes only if they are valid UTF-8. (U+FFFE and U+FFFF, which are noncharacters, fail
-- too.) Most functions ignore what follows a NUL, but instr does not. Headers are not checked this
-- way: they may be long, and a job whose headers cannot be read is quarantined when it is claimed.
--
-- Nothing is stored under the id of a job that has ended while it is pinned or in the history. The
-- trigger does not know the limits, so a job beyond them counts until its row is deleted.
CREATE TRIGGER {p}schedule_v1_insert INSTEAD OF INSERT ON {p}schedule_v1
BEGIN
    SELECT RAISE(ABORT, 'dq: queue must be text of 1 to 128 bytes')
        WHERE typeof(NEW.queue) <> 'text'
           OR length(CAST(NEW.queue AS BLOB)) NOT BETWEEN 1 AND 128;
    SELECT RAISE(ABORT, 'dq: queue must not hold control characters')
        WHERE instr(NEW.queue, char(0)) > 0
           OR NEW.queue GLOB
              '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*';
    SELECT RAISE(ABORT, 'dq: queue must be valid UTF-8')
        WHERE NEW.queue GLOB '*[^ -~]*'
          AND EXISTS (
              WITH RECURSIVE rest (text) AS (
                  SELECT NEW.queue
                  UNION ALL SELECT substr(text, 2) FROM rest WHERE length(text) > 1)
              SELECT 1 FROM rest
              WHERE CAST(char(unicode(text)) AS BLOB) <> CAST(substr(text, 1, 1) AS BLOB));
    SELECT RAISE(ABORT, 'dq: id must be a blob of 16 bytes')
        WHERE typeof(NEW.id) <> 'blob' OR length(NEW.id) <> 16;
    SELECT RAISE(ABORT, 'dq: key must be null or text of 1 to 255 bytes')
        WHERE NEW.key IS NOT NULL
          AND (typeof(NEW.key) <> 'text'
               OR length(CAST(NEW.key AS BLOB)) NOT BETWEEN 1 AND 255);
    SELECT RAISE(ABORT, 'dq: key must not hold control characters')
        WHERE instr(NEW.key, char(0)) > 0
           OR NEW.key GLOB
              '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*';
    SELECT RAISE(ABORT, 'dq: key must be valid UTF-8')
        WHERE NEW.key GLOB '*[^ -~]*'
          AND EXISTS (
              WITH RECURSIVE rest (text) AS (
                  SELECT NEW.key
                  UNION ALL SELECT substr(text, 2) FROM rest WHERE length(text) > 1)
              SELECT 1 FROM rest
              WHERE CAST(char(unicode(text)) AS BLOB) <> CAST(substr(text, 1, 1) AS BLOB));
    SELECT RAISE(ABORT, 'dq: due must be an integer of Unix milliseconds before the year 10000')
        WHERE typeof(NEW.due) <> 'integer' OR NEW.due NOT BETWEEN 0 AND 253402300799999;
    SELECT RAISE(ABORT, 'dq: payload must be a blob or text')
        WHERE typeof(NEW.payload) NOT IN ('blob', 'text');
    -- Separate checks, in this order: the JSON functions fail on text that is not JSON.
    SELECT RAISE(ABORT, 'dq: headers must be null or the text of a JSON object')
        WHERE NEW.headers IS NOT NULL
          AND (typeof(NEW.headers) <> 'text'
               OR instr(NEW.headers, char(0)) > 0
               OR NOT json_valid(NEW.headers));
    SELECT RAISE(ABORT, 'dq: headers must be a JSON object')
        WHERE json_type(NEW.headers) <> 'object';
    SELECT RAISE(ABORT, 'dq: headers must have values that are text')
        WHERE EXISTS (SELECT 1 FROM json_each(NEW.headers) WHERE type <> 'text');
    SELECT RAISE(ABORT, 'dq: max_attempts must be null or an integer from 1 to 4294967295')
        WHERE NEW.max_attempts IS NOT NULL
          AND (typeof(NEW.max_attempts) <> 'integer'
               OR NEW.max_attempts NOT BETWEEN 1 AND 4294967295);

    INSERT INTO {p}queue (name)
        SELECT NEW.queue WHERE NOT EXISTS (SELECT 1 FROM {p}queue WHERE name = NEW.queue);
    INSERT INTO {p}job (seq, id, q, key, due, created, max_attempts, headers, payload)
        SELECT meta.seq + 1, NEW.id, queue.q, NEW.key, NEW.due,
               CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER),
               NEW.max_attempts, NEW.headers, CAST(NEW.payload AS BLOB)
        FROM {p}meta AS meta, {p}queue AS queue
        WHERE queue.name = NEW.queue
          AND NOT EXISTS (SELECT 1 FROM {p}job WHERE id = NEW.id)
          AND NOT EXISTS (SELECT 1 FROM {p}dead WHERE id = NEW.id)
          AND NOT EXISTS (SELECT 1 FROM {p}pin
                          WHERE id = NEW.id
                            AND until > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
          AND NOT EXISTS (SELECT 1 FROM {p}ended WHERE id = NEW.id AND q = queue.q)
          AND NOT EXISTS (SELECT 1 FROM {p}job AS other
                          WHERE other.q = queue.q AND other.key = NEW.key);
    -- From here on a job with the number after the counter's is the one just stored, if it was.
    INSERT INTO {p}due (q, at, seq)
        SELECT q, due, seq FROM {p}job WHERE seq = (SELECT seq + 1 FROM {p}meta);
    UPDATE {p}queue SET created = created + 1
        WHERE q = (SELECT q FROM {p}job WHERE seq = (SELECT seq + 1 FROM {p}meta));
    UPDATE {p}meta SET seq = seq + 1
        WHERE EXISTS (SELECT 1 FROM {p}job WHERE seq = (SELECT seq + 1 FROM {p}meta));
END;

-- Ending a lease as done in plain SQL: insert the job's id and the lease's token into this view. With
-- `history`, the job goes to the history. The insert fails if the lease is lost.
CREATE VIEW {p}done_v1 (id, token, history) AS
    SELECT job.id, lease.token, 0 FROM {p}lease AS lease JOIN {p}job AS job ON job.seq = lease.seq;

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
    DELETE FROM {p}note WHERE seq = (SELECT seq FROM {p}job WHERE id = NEW.id);
    DELETE FROM {p}lease WHERE seq = (SELECT seq FROM {p}job WHERE id = NEW.id);
    DELETE FROM {p}job WHERE id = NEW.id;
END;

INSERT INTO {p}meta (one, version, min_writer, min_reader, store, seq, token, granted)
    VALUES (1, 1, 1, 1, randomblob(16), 0, 0, 0);
