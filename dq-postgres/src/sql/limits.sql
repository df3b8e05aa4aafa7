-- Version 2: limits of queues. Functions of `flow.sql`.

-- Queues with limits, with earlier ones, or that a handler has throttled. `declared` and `overriding` are
-- the runners' and an operator's limits: `max_running`, `rate`, and the rate's `interval` in microseconds
-- and `burst`. The generated columns are the limits in force; a value that is no limit cannot be stored.
-- No job of the queue starts before `closed_until`.
CREATE TABLE dq.flow (
    q             integer PRIMARY KEY,
    declared      jsonb NOT NULL DEFAULT '{}',
    overriding    jsonb,
    closed_until  bigint CHECK (closed_until <= 9000000000000000),
    max_running   bigint CHECK (max_running >= 0)
        GENERATED ALWAYS AS ((coalesce(overriding, declared) ->> 'max_running')::bigint) STORED,
    rate_interval bigint CHECK (rate_interval BETWEEN 1 AND 86400000000)
        GENERATED ALWAYS AS ((coalesce(overriding, declared) ->> 'interval')::bigint) STORED,
    rate_burst    bigint CHECK (rate_burst BETWEEN 1 AND 10000)
        GENERATED ALWAYS AS ((coalesce(overriding, declared) ->> 'burst')::bigint) STORED,
    CHECK ((rate_interval IS NULL) = (rate_burst IS NULL))
);

-- What the limits have let pass; the row with the largest `n` counts. `used` is what the rate has used, in
-- Unix microseconds. `line` has the workers that wait for room, longest first, and `seen` when each has
-- last claimed. Rows are inserted only, each with the next `n`, and deleted later: claims read the newest
-- one, so an old snapshot does not slow them down.
CREATE TABLE dq.gate (
    q    integer,
    n    bigint,
    used bigint NOT NULL,
    line text[] NOT NULL,
    seen bigint[] NOT NULL,
    PRIMARY KEY (q, n)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Its successor has one argument more, with a default: processes of version 1 keep the limits, too.
DROP FUNCTION IF EXISTS dq.claim(
    text[], integer[], bigint[], integer, text, bigint[], bigint[], bigint[], bigint[], bigint[], bigint[]);
