-- Leases due jobs of each queue, up to `total` in all, and `starting` in a queue with limits.
--
-- The other arguments are bounds for each queue, from the caller's earlier claims: no job waits below
-- (`from_at`, `from_seq`), unless `rewind` has it, after the row `from_rewind` and `seen_rewinds` others; no
-- lease expires before `from_expired`; and none expires between now and `from_expiry`. A new process
-- passes null, and begins at the queue's floors.
--
-- Returns a row for each leased job, one without id for each queue that is not paused, and last one with
-- `now` only. A queue's row says:
-- - `next_at`, `next_seq`: its first waiting job;
-- - `next_expired`, `expired_due`: the first expired lease that is left, and when its job was due;
-- - `next_expiry`: when the next lease expires;
-- - `last_rewind`, `rewinds`: to pass as `from_rewind` and `seen_rewinds` next time;
-- - `until`: until when its limits let no waiting job start; see `pass_gate`.
CREATE OR REPLACE FUNCTION dq.claim(
    queues text[], maxes integer[], lease_times bigint[], total integer, holder text,
    from_at bigint[], from_seq bigint[], from_expired bigint[], from_expiry bigint[],
    from_rewind bigint[], seen_rewinds bigint[], starting integer[] DEFAULT NULL
) RETURNS TABLE (
    want integer, id uuid, seq bigint, key text, due bigint, first_due bigint, created bigint,
    attempts integer, deliveries integer, losses integer, max_attempts bigint, headers text,
    payload bytea, token bigint, until bigint, next_at bigint, next_seq bigint, next_expired bigint,
    expired_due bigint, next_expiry bigint, last_rewind bigint, rewinds bigint, now bigint
) LANGUAGE plpgsql {planned} AS $$
#variable_conflict use_column
DECLARE
    t bigint := dq.now_ms();
    remaining integer := total;
    most integer;
    -- Of them, those for free slots.
    to_start integer;
    wanted dq.queue;
    f dq.flow;
    g dq.gate;
    -- Queues with limits; null if no queue of the store has any.
    locked integer[];
    -- The gate after this claim.
    new_gate dq.gate;
    noted record;
    is_called boolean;
    room record;
    passed record;
    first_at bigint;
    first_seq bigint;
    first_expired bigint;
    rewound record;
    -- The rows stay in their places: this transaction has locked them.
    picked tid[];
    met integer;
    started integer;
    parked integer;
    newly_parked integer;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(dq.limits_key(name))
        FROM (SELECT unnest(queues) AS name ORDER BY name) AS wanted;
    IF EXISTS (SELECT FROM dq.flow) THEN
        locked := CASE WHEN total > 0 THEN dq.lock_gates(queues, maxes) ELSE '{}' END;
        IF locked <> '{}' AND current_setting('transaction_isolation') <> 'read committed' THEN
            -- It would not see the leases of claims that it has waited for.
            RAISE EXCEPTION 'claims in limits need READ COMMITTED' USING ERRCODE = 'serialization_failure';
        END IF;
        t := dq.now_ms();
    END IF;
    FOR i IN 1..cardinality(queues) LOOP
        SELECT * INTO wanted FROM dq.queue WHERE name = queues[i];
        CONTINUE WHEN NOT FOUND OR wanted.paused;
        first_at := coalesce(from_at[i], wanted.floor);
        first_seq := from_seq[i];
        first_expired := coalesce(from_expired[i], wanted.expired_floor);
        last_rewind := coalesce(from_rewind[i], wanted.rewound);
        -- A transaction may commit some time after it took its number.
        SELECT count(*) AS rows, min(r.at) AS at, max(r.n) FILTER (WHERE r.t < t - 500) AS last,
                count(*) FILTER (WHERE r.t >= t - 500) AS recent
            INTO rewound FROM dq.rewind r WHERE r.q = wanted.q AND r.n > last_rewind;
        IF rewound.rows <> seen_rewinds[i] AND rewound.at <= first_at THEN
            first_at := rewound.at;
            first_seq := 0;
        END IF;
        last_rewind := coalesce(rewound.last, last_rewind);
        rewinds := rewound.recent;
        most := least(maxes[i], remaining);
        to_start := least(most, starting[i]);
        IF locked IS NOT NULL THEN
            SELECT * INTO f FROM dq.flow WHERE flow.q = wanted.q;
            IF FOUND THEN
                g := dq.gate_of(f.q);
                new_gate := g;
                is_called := false;
                IF f.q = ANY (locked)
                    AND (g.line <> '{}' OR g.parked > 0
                        OR EXISTS (SELECT FROM dq.note n WHERE n.q = f.q AND n.at >= g.read_to))
                THEN
                    noted := dq.read_notes(f, g, holder, first_expired, t);
                    new_gate := noted.g;
                    is_called := noted.is_called;
                END IF;
                room := dq.room(f, g.used, t);
                -- A queue that was only throttled has no limit: jobs may wait in the runner.
                most := CASE
                    WHEN coalesce(f.max_running, f.group_max_running, f.rate_interval) IS NULL
                        THEN least(most, room.jobs)
                    WHEN f.q <> ALL (locked) THEN 0
                    WHEN coalesce(room.jobs / 2 >= most, true) THEN most
                    ELSE least(to_start, room.jobs) END;
            END IF;
        END IF;
        started := 0;
        parked := 0;
        WHILE started < most LOOP
            met := greatest(most - started, least(parked, 100));
            picked := ARRAY(
                SELECT due_job.place FROM (
                    SELECT * FROM (
                        SELECT j.ctid AS place, j.at AS due, j.seq FROM dq.job j
                        WHERE j.q = wanted.q AND j.state = 0 AND j.at <= t
                            AND (j.at, j.seq) >= (first_at, first_seq)
                        ORDER BY j.at, j.seq LIMIT met FOR UPDATE SKIP LOCKED) AS waiting
                    UNION ALL
                    SELECT * FROM (
                        SELECT j.ctid, j.due, j.seq FROM dq.job j
                        WHERE j.state = 1 AND j.at <= t AND j.id = ANY (ARRAY(
                            SELECT first.id FROM (
                                SELECT e.id, e.due, e.seq FROM dq.job e
                                WHERE e.q = wanted.q AND e.state = 1 AND e.at <= t
                                    AND e.at >= first_expired
                                ORDER BY e.at LIMIT 10000) AS first
                            ORDER BY first.due, first.seq LIMIT met))
                        FOR UPDATE SKIP LOCKED) AS expired
                ) AS due_job ORDER BY due_job.due, due_job.seq LIMIT met);
            met := cardinality(picked);
            EXIT WHEN met = 0;
            newly_parked := 0;
            IF f.q = wanted.q AND f.group_max_running IS NOT NULL THEN
                SELECT * INTO picked, newly_parked
                    FROM dq.admit(f, picked, most - started, to_start - started, t);
                parked := parked + newly_parked;
            END IF;
            started := started + cardinality(picked);
            RETURN QUERY UPDATE dq.job j
                SET state = 1, at = t + lease_times[i], worker = holder, since = t,
                    grp = dq.group_of(j.headers),
                    token = least(greatest(coalesce(j.token, 0) + 1, t * 1000), 9000000000000000000),
                    deliveries = least(j.deliveries + 1, 1000000000),
                    losses = least(j.losses + j.state, 1000000000)
                WHERE j.ctid = ANY (picked)
                RETURNING i, j.id, j.seq, j.key, j.due, j.first_due, j.created, j.attempts,
                    j.deliveries, j.losses, j.max_attempts, j.headers, j.payload, j.token,
                    j.at, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
                    NULL::bigint, NULL::bigint, NULL::bigint;
            -- Behind jobs of full groups may be others.
            EXIT WHEN newly_parked = 0 OR parked >= 1000;
        END LOOP;
        remaining := remaining - started;
        IF parked > 0 THEN
            IF new_gate.parked <= 0 THEN
                -- Settlements under way leave no notes.
                new_gate.walk := '';
                new_gate.walk_at := -1;
            END IF;
            new_gate.parked := new_gate.parked + parked;
        END IF;
        SELECT j.at, j.seq INTO next_at, next_seq FROM dq.job j
            WHERE j.q = wanted.q AND j.state = 0 AND (j.at, j.seq) >= (first_at, first_seq)
            ORDER BY j.at, j.seq LIMIT 1;
        SELECT j.at, j.due INTO next_expired, expired_due FROM dq.job j
            WHERE j.q = wanted.q AND j.state = 1 AND j.at <= t AND j.at >= first_expired
            ORDER BY j.at LIMIT 1;
        SELECT j.at INTO next_expiry FROM dq.job j
            WHERE j.q = wanted.q AND j.state = 1 AND j.at > t
                AND j.at >= least(from_expiry[i], t + lease_times[i])
            ORDER BY j.at LIMIT 1;
        until := NULL;
        IF f.q = wanted.q THEN
            passed := dq.pass_gate(f, g, new_gate, holder, started, to_start, room.free, is_called,
                coalesce(least(next_at, expired_due) <= t, false), f.q = ANY (locked), t);
            until := passed.until;
            next_expiry := least(next_expiry, passed.again_at);
        END IF;
        want := i;
        RETURN NEXT;
    END LOOP;
    want := NULL;
    now := t;
    RETURN NEXT;
END $$;

-- Extends leases. Returns the leases that were held, and when they now expire.
CREATE OR REPLACE FUNCTION dq.renew(ids uuid[], tokens bigint[], lease_times bigint[])
RETURNS TABLE (id uuid, token bigint, until bigint) LANGUAGE plpgsql {planned} AS $$
#variable_conflict use_column
DECLARE
    t bigint;
BEGIN
    -- Locks in one order, like `settle`.
    PERFORM FROM dq.job j WHERE j.id = ANY (ids) ORDER BY j.id FOR UPDATE;
    -- A claim beside this does not see the renewal, and might give the slot away.
    IF EXISTS (SELECT FROM dq.flow WHERE coalesce(max_running, group_max_running) IS NOT NULL) THEN
        PERFORM pg_advisory_xact_lock(dq.lock_key('dq.gate', limited.q)) FROM (
            SELECT DISTINCT j.q FROM dq.job j JOIN dq.flow USING (q)
            WHERE j.id = ANY (ids) AND coalesce(max_running, group_max_running) IS NOT NULL
            ORDER BY j.q) AS limited;
    END IF;
    t := dq.now_ms();
    RETURN QUERY UPDATE dq.job j SET at = t + lease.duration
        FROM unnest(ids, tokens, lease_times) AS lease (id, token, duration)
        WHERE j.id = lease.id AND j.token = lease.token AND j.state = 1 AND j.at > t
        RETURNING j.id, j.token, j.at;
END $$;
