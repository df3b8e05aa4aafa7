-- Format 1: the tables. {p} stands for the prefix. All times are Unix milliseconds.

-- One row: the format, the random id of the store, and the last `seq` and token that were issued. A
-- `seq` numbers the jobs of all queues in the order of their insertion; jobs that are due at the
-- same time run in that order.
CREATE TABLE {p}meta (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    format INTEGER NOT NULL,
    store  BLOB NOT NULL,
    seq    INTEGER NOT NULL,
    token  INTEGER NOT NULL
);

-- Queues, which other tables refer to by the small number q, with their total counts since the
-- queue was created. Rows are never deleted.
CREATE TABLE {p}queue (
    q         INTEGER PRIMARY KEY,
    name      TEXT NOT NULL UNIQUE,
    paused    INTEGER NOT NULL DEFAULT 0,
    created   INTEGER NOT NULL DEFAULT 0,
    done      INTEGER NOT NULL DEFAULT 0,
    skipped   INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    replaced  INTEGER NOT NULL DEFAULT 0,
    removed   INTEGER NOT NULL DEFAULT 0
);

-- Live jobs: waiting or leased. The payload is the last column, so that the others are read without
-- it.
CREATE TABLE {p}job (
    seq          INTEGER PRIMARY KEY,
    id           BLOB NOT NULL,
    q            INTEGER NOT NULL,
    key          TEXT,
    due          INTEGER NOT NULL,
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

-- Leases of running jobs. The rows are small, so a claim does not write the wide row of the job.
CREATE TABLE {p}lease (
    seq    INTEGER PRIMARY KEY,
    q      INTEGER NOT NULL,
    until  INTEGER NOT NULL,
    token  INTEGER NOT NULL,
    worker TEXT NOT NULL
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

INSERT INTO {p}meta (one, format, store, seq, token) VALUES (1, 1, randomblob(16), 0, 0);
