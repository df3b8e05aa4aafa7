-- Version 5: jobs that have ended, pinned ids, and runners.

-- When the lease was granted; a renewal does not change it. Null if that is unknown: older versions
-- do not store it.
ALTER TABLE {p}lease ADD COLUMN since INTEGER;

-- Number of rows of the queue in the `ended` table.
ALTER TABLE {p}queue ADD COLUMN ended INTEGER NOT NULL DEFAULT 0;

-- What few jobs have, live or dead: how long their id is pinned after their end, in milliseconds, the
-- start and the holder of their last lease that has ended, and the error of their last run that
-- failed. A table of its own, since a job that has not run needs no row, and since columns after the
-- payload cannot be read without it. Versions that do not know the table leave rows of jobs that
-- have ended; no other job gets their `seq`.
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

-- The trigger of version 2, which now stores nothing under the id of a job that has ended, either, while
-- it is pinned or in the history. It does not know the limits, so a job beyond them counts until its row
-- is deleted.
DROP TRIGGER {p}schedule_v1_insert;
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
