-- Version 2: limits of queues and groups. Functions of `flow.sql` and `groups.sql`.

-- Queues with limits, with earlier ones, or that a handler has throttled. `declared` and `overriding` are
-- the runners' and an operator's limits: `max_running`, `group_max_running`, `rate`, and the rate's
-- `interval` in microseconds and `burst`. The generated columns are the limits in force; a value that is no limit cannot be stored.
-- No job of the queue starts before `closed_until`.
CREATE TABLE dq.flow (
    q             integer PRIMARY KEY,
    declared      jsonb NOT NULL DEFAULT '{}',
    overriding    jsonb,
    closed_until  bigint CHECK (closed_until <= 9000000000000000),
    max_running   bigint CHECK (max_running >= 0)
        GENERATED ALWAYS AS ((coalesce(overriding, declared) ->> 'max_running')::bigint) STORED,
    group_max_running bigint CHECK (group_max_running >= 0)
        GENERATED ALWAYS AS ((coalesce(overriding, declared) ->> 'group_max_running')::bigint) STORED,
    rate_interval bigint CHECK (rate_interval BETWEEN 1 AND 86400000000)
        GENERATED ALWAYS AS ((coalesce(overriding, declared) ->> 'interval')::bigint) STORED,
    rate_burst    bigint CHECK (rate_burst BETWEEN 1 AND 10000)
        GENERATED ALWAYS AS ((coalesce(overriding, declared) ->> 'burst')::bigint) STORED,
    CHECK ((rate_interval IS NULL) = (rate_burst IS NULL))
);

-- What the limits have let pass; the row with the largest `n` counts. `used` is what the rate has used, in
-- Unix microseconds. `line` has the workers that wait for room, longest first, and `seen` when each has
-- last claimed. `parked` is the number of parked jobs, or more until a walk finds none, because nobody
-- subtracts those that are cancelled. Claims have read the notes from before `read_to`, except for late
-- ones. `walk` and `walk_at` are where and when the next walk along the groups begins; see `walk_groups`.
--
-- Rows are inserted only, each with the next `n`, and deleted later: claims read the newest one, so an old
-- snapshot does not slow them down.
CREATE TABLE dq.gate (
    q       integer,
    n       bigint,
    used    bigint NOT NULL,
    line    text[] NOT NULL,
    seen    bigint[] NOT NULL,
    parked  bigint NOT NULL,
    read_to bigint NOT NULL,
    walk    text NOT NULL,
    walk_at bigint NOT NULL,
    PRIMARY KEY (q, n)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The group of a job's last lease, or of a parked job, which is in state -1; `at` is then when it is due.
-- The guide says how to add both beforehand, while jobs run.
ALTER TABLE dq.job ADD COLUMN IF NOT EXISTS grp text;
CREATE INDEX IF NOT EXISTS job_group ON dq.job (q, state, grp, at, seq) WHERE grp IS NOT NULL;

-- Notes to claims, which delete them: groups in which a lease has ended, or a waiting job has left its place;
-- and workers in the line that were called and have not claimed yet.
CREATE TABLE dq.note (
    q      integer,
    at     bigint,
    n      bigint DEFAULT nextval('dq.job_seq'),
    grp    text,
    worker text,
    PRIMARY KEY (q, at, n)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Whoever may use the tables of version 1 may use the new ones.
DECLARE
    user_name text;
BEGIN
    FOR user_name IN
        SELECT grantee::regrole FROM pg_class, aclexplode(relacl)
        WHERE oid = 'dq.job'::regclass AND privilege_type = 'INSERT' AND grantee NOT IN (relowner, 0)
    LOOP
        EXECUTE 'GRANT SELECT, INSERT, UPDATE, DELETE ON dq.flow, dq.gate, dq.note TO ' || user_name;
    END LOOP;
END;

-- Its successor has one argument more, with a default: processes of version 1 keep the limits, too.
DROP FUNCTION IF EXISTS dq.claim(
    text[], integer[], bigint[], integer, text, bigint[], bigint[], bigint[], bigint[], bigint[], bigint[]);
