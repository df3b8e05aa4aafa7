-- Format 1. All times are Unix milliseconds by the server's clock. `dq` stands for the schema.

-- One row: the versions of these tables and of the functions, the oldest versions that may write and read
-- the tables, the store's random id, and the default history limit: how many ended jobs, and for how many
-- milliseconds.
CREATE TABLE dq.meta (
    one          integer PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    version      integer NOT NULL,
    functions    integer NOT NULL DEFAULT 0,
    min_writer   integer NOT NULL,
    min_reader   integer NOT NULL,
    store        uuid NOT NULL DEFAULT gen_random_uuid(),
    history_max  integer NOT NULL DEFAULT 0,
    history_age  bigint NOT NULL DEFAULT 86400000
);

-- Queues, with the totals of the jobs that have left them; `tally` has the newest. Rows are never
-- deleted.
--
-- An index entry of a job that was claimed or deleted stays while an old snapshot can see it. So claims
-- read from bounds on: no job waits below `floor`, unless `rewind` has it, after the row `rewound`, and no
-- lease expires before `expired_floor`. New processes begin there.
CREATE TABLE dq.queue (
    q            integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name         text NOT NULL UNIQUE
        CHECK (octet_length(name) BETWEEN 1 AND 128 AND name !~ '[[:cntrl:]]'),
    bucket       integer NOT NULL,
    paused       boolean NOT NULL DEFAULT false,
    history_max  integer,
    history_age  bigint,
    floor        bigint NOT NULL DEFAULT -9223372036854775808,
    rewound      bigint NOT NULL DEFAULT 0,
    expired_floor bigint NOT NULL DEFAULT -9223372036854775808,
    done         bigint NOT NULL DEFAULT 0,
    skipped      bigint NOT NULL DEFAULT 0,
    cancelled    bigint NOT NULL DEFAULT 0,
    replaced     bigint NOT NULL DEFAULT 0,
    removed      bigint NOT NULL DEFAULT 0
);

-- The queues' own history limits, or the default.
CREATE VIEW dq.history_limit AS
    SELECT q, coalesce(queue.history_max, meta.history_max) AS max,
        coalesce(queue.history_age, meta.history_age) AS age
    FROM dq.queue, dq.meta;

-- Numbers jobs in insertion order; jobs that are due at the same time run in that order.
CREATE SEQUENCE dq.job_seq;

-- Jobs by state. `at` is the time by which a state is ordered:
--   0 waiting: when the job is due;
--   1 leased: when the lease expires. The job then counts as waiting, and stays here until a claim;
--   2 dead: when it died; `kind` and `message` are the reason;
--   3 ended, in the history: when it ended; `kind` and `message` are the ending and its reason;
--   4 ended, only to keep the id taken: until when.
-- `first_due` is null until a retry or a snooze changes `due`. `token`, `worker` and `since` describe the
-- last lease. `remember` is for how long the id is pinned after the end, `pinned` until when it then is.
-- The columns are in the order that leaves the smallest gaps.
CREATE TABLE dq.job (
    id           uuid PRIMARY KEY,
    seq          bigint NOT NULL,
    at           bigint NOT NULL,
    due          bigint NOT NULL,
    created      bigint NOT NULL,
    q            integer NOT NULL,
    attempts     integer NOT NULL DEFAULT 0,
    deliveries   integer NOT NULL DEFAULT 0,
    losses       integer NOT NULL DEFAULT 0,
    state        smallint NOT NULL DEFAULT 0,
    first_due    bigint,
    token        bigint,
    since        bigint,
    remember     bigint,
    pinned       bigint,
    max_attempts bigint,
    key          text CHECK (octet_length(key) BETWEEN 1 AND 255),
    worker       text,
    last_error   text,
    kind         text,
    message      text,
    headers      text,
    payload      bytea NOT NULL,
    -- Far from an overflow, which would fail each call that claims or settles other jobs with this one.
    -- Counts and tokens stop here; only a row of another program can come that far.
    CHECK (greatest(attempts, deliveries, losses) <= 1000000000),
    CHECK (greatest(token, remember) <= 9000000000000000000)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX job_at ON dq.job (q, state, at, seq);
CREATE UNIQUE INDEX job_key ON dq.job (q, key) WHERE key IS NOT NULL AND state < 2;

-- Jobs that came to wait in the past, perhaps below the bounds of claims. `at` is their first due time, and
-- `t` when they came. `n` numbers the rows. Rows are inserted only, and deleted a minute later: nobody
-- waits for another's transaction, and an old snapshot does not slow claims down.
CREATE TABLE dq.rewind (
    q  integer,
    n  bigint DEFAULT nextval('dq.job_seq'),
    at bigint NOT NULL,
    t  bigint NOT NULL,
    PRIMARY KEY (q, n)
);

-- How many jobs have left each queue, by ending. Each call inserts rows instead of updating the queue's,
-- so that callers do not wait for each other; `fold_tally` adds them up.
CREATE TABLE dq.tally (
    q      integer NOT NULL,
    ending text NOT NULL,
    jobs   bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Runners that have announced themselves.
CREATE TABLE dq.runner (
    name  text PRIMARY KEY,
    info  bytea NOT NULL,
    at    bigint NOT NULL,
    until bigint NOT NULL
);

-- The current 10 ms, and which buckets of queues were notified in it; see `hint`. A sequence, because it
-- changes at once, not at commit.
CREATE SEQUENCE dq.hints MINVALUE 0 START 0;

INSERT INTO dq.meta (version, min_writer, min_reader) VALUES (1, 1, 1);
