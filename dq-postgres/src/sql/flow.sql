-- Limits for all processes. They are exact because claims of a limited queue wait for each other: two
-- claims at once would not see each other's leases. Settlements, which may be part of a caller's
-- transaction, hold up no claim.
--
-- Locks are taken in this order: limits by name (`limits_key`), jobs by id, gates by queue, `flow` by queue.
-- Only a claim locks gates before jobs, and then only jobs that nobody has locked.

-- The key of an advisory lock. Of `gate`: claims, which change the queue's gate. Of `flow`: shared by
-- settlements, and exclusive for a claim that joins the line, see `offer_room`.
CREATE OR REPLACE FUNCTION dq.lock_key(of_table regclass, queue_id integer) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT (of_table::oid::bigint << 32) | queue_id
$$;

-- Locks the gates of the queues from which a claim wants jobs, in one order. Returns these queues.
CREATE OR REPLACE FUNCTION dq.lock_gates(queues text[], maxes integer[]) RETURNS integer[]
LANGUAGE plpgsql AS $$
DECLARE
    queue_id integer;
    locked integer[] := '{}';
BEGIN
    FOR queue_id IN
        SELECT q FROM unnest(queues, maxes) AS want (name, most)
            JOIN dq.queue USING (name) JOIN dq.flow USING (q)
        WHERE most > 0 AND NOT paused AND (
            coalesce(max_running, group_max_running, rate_interval) IS NOT NULL OR (dq.gate_of(q)).parked > 0)
        ORDER BY q
    LOOP
        PERFORM pg_advisory_xact_lock(dq.lock_key('dq.gate', queue_id));
        locked := locked || queue_id;
    END LOOP;
    RETURN locked;
END $$;

CREATE OR REPLACE FUNCTION dq.gate_of(queue_id integer) RETURNS dq.gate
LANGUAGE plpgsql AS $$
DECLARE
    g dq.gate;
BEGIN
    SELECT * INTO g FROM dq.gate WHERE q = queue_id ORDER BY n DESC LIMIT 1;
    RETURN CASE WHEN FOUND THEN g ELSE (queue_id, 0, 0, '{}', '{}', 0, 0, '', 1)::dq.gate END;
END $$;

-- With an older snapshot, as in a transaction that is not READ COMMITTED, a claim does not see the last one.
-- Then the row exists, and the server reports a serialization failure, after which the call is repeated.
CREATE OR REPLACE FUNCTION dq.change_gate(g dq.gate) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    g.n := g.n + 1;
    INSERT INTO dq.gate SELECT g.* ON CONFLICT DO NOTHING;
END $$;

-- `used` at the time `t`: in the range also after the clock was set back, or the rate was changed.
CREATE OR REPLACE FUNCTION dq.used_until(f dq.flow, used bigint, t bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT least(greatest(used, t * 1000), t * 1000 + f.rate_interval * f.rate_burst)
$$;

-- When throttle and rate let the next job start; null if one may start now.
CREATE OR REPLACE FUNCTION dq.opens_at(f dq.flow, used bigint, t bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN f.closed_until > t THEN f.closed_until
        ELSE nullif(greatest(t,
            (dq.used_until(f, used, t) - f.rate_interval * (f.rate_burst - 1) + 999) / 1000), t) END
$$;

-- How many jobs may run beside those that run (`free`), and how many may start now (`jobs`). Null without a
-- limit.
CREATE OR REPLACE FUNCTION dq.room(f dq.flow, used bigint, t bigint, OUT free bigint, OUT jobs bigint)
LANGUAGE plpgsql AS $$
BEGIN
    IF f.max_running IS NOT NULL THEN
        free := f.max_running - (SELECT count(*) FROM (
            SELECT FROM dq.job WHERE q = f.q AND state = 1 AND at > t
            ORDER BY at DESC, seq DESC LIMIT f.max_running) AS running);
    END IF;
    jobs := CASE WHEN dq.opens_at(f, used, t) IS NULL
        THEN least(free, (t * 1000 + f.rate_interval * f.rate_burst - dq.used_until(f, used, t)) / f.rate_interval)
        ELSE 0 END;
END $$;

-- Wakes the listeners of one worker, or of all for an empty name, when a job may start from the time
-- `due_at` on.
CREATE OR REPLACE FUNCTION dq.call_worker(queue_id integer, due_at bigint, worker text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF worker IS NOT NULL THEN
        PERFORM pg_notify('{channel}', concat_ws(' ', bucket, due_at, left(worker, 1000)))
            FROM dq.queue WHERE q = queue_id;
    END IF;
END $$;

-- Counts jobs that a claim has started, of `to_start` ones, in a queue where `free` others could have run; and
-- moves the claimer in the line, or out of it. `g` is the gate after the claim, `old` the stored one.
-- `is_called` says that another worker was called and is about to claim.
-- Returns until when no job may start: null if one may, the largest number if only the end of a lease makes
-- room. `again_at` is when the claimer should look again, in any case.
CREATE OR REPLACE FUNCTION dq.pass_gate(
    f dq.flow, old dq.gate, g dq.gate, claimer text, started integer, to_start integer, free bigint,
    is_called boolean, is_due boolean, has_lock boolean, t bigint, OUT until bigint, OUT again_at bigint
) LANGUAGE plpgsql AS $$
DECLARE
    -- The claimer's position in the line.
    position integer;
    opens_at bigint;
    is_full boolean := coalesce(free = started, false);
    has_room boolean;
BEGIN
    -- A claimer without a free slot shows that it still waits.
    IF NOT has_lock AND old.seen[array_position(old.line, claimer)] < t - 30000 THEN
        has_lock := pg_try_advisory_xact_lock(dq.lock_key('dq.gate', f.q));
        old := dq.gate_of(f.q);
        g := old;
    END IF;
    -- The first one has ended: the longest sweep interval is a minute.
    WHILE g.seen[1] < t - 65000 LOOP
        g.line := g.line[2:];
        g.seen := g.seen[2:];
    END LOOP;
    position := array_position(g.line, claimer);
    IF started > 0 THEN
        g.used := coalesce(dq.used_until(f, g.used, t) + started * f.rate_interval, g.used);
        IF position IS NOT NULL THEN
            -- Those before it were woken, or had their turns, and did not come: they may have ended.
            g.line := g.line[position + 1:];
            g.seen := g.seen[position + 1:];
            position := NULL;
        END IF;
    END IF;
    opens_at := dq.opens_at(f, g.used, t);
    has_room := opens_at IS NULL AND NOT is_full;
    -- Jobs that only wait for their groups are parked.
    IF NOT has_room OR g.parked > 0 THEN
        IF g.seen[position] < t - 30000 THEN
            g.seen[position] := t;
        ELSIF position IS NULL AND has_lock AND started < to_start AND (is_due OR g.parked > 0)
            AND cardinality(g.line) < 50
        THEN
            g.line := g.line || claimer;
            g.seen := g.seen || t;
            position := cardinality(g.line);
        END IF;
    END IF;
    IF has_room AND has_lock AND g.line <> '{}' THEN
        IF is_due AND is_called THEN
            -- The called one may have no free slot.
            again_at := t + 1000;
        ELSIF is_due AND g.line[1] <> claimer THEN
            -- It joins again if it finds no job.
            PERFORM dq.call_worker(f.q, 0, g.line[1]);
            g.line := g.line[2:];
            g.seen := g.seen[2:];
            position := position - 1;
        ELSIF NOT is_due AND g.parked <= 0 THEN
            -- Nobody has to wait any more: without a job for them, nobody is woken either.
            PERFORM dq.call_worker(f.q, 9000000000000000, '');
            g.line := '{}';
            g.seen := '{}';
            position := NULL;
        END IF;
    END IF;
    IF has_lock AND position IS NOT NULL AND (is_full OR g.parked > 0) THEN
        -- A settlement under way does not see the newcomer, nor did this claim see its room.
        IF NOT pg_try_advisory_xact_lock(dq.lock_key('dq.flow', f.q)) THEN
            again_at := t + 10 + (t - g.seen[position]) / 2;
        ELSIF (is_full AND (dq.room(f, g.used, t)).free > 0) OR (g.parked > 0 AND g.walk_at < 0)
            OR EXISTS (SELECT FROM dq.note WHERE q = f.q AND at >= g.read_to AND grp IS NOT NULL)
        THEN
            again_at := t + 1;
        END IF;
    END IF;
    -- Nobody else may come for parked jobs: no note or notification is certain.
    IF g.parked > 0 THEN
        again_at := least(again_at, CASE WHEN g.walk_at < 0 THEN t + 1000 ELSE greatest(t + 1, g.walk_at) END);
    END IF;
    IF has_lock AND g IS DISTINCT FROM old THEN
        PERFORM dq.change_gate(g);
    END IF;
    -- At a rate, each has a turn.
    until := CASE WHEN is_full THEN 9223372036854775807
        ELSE opens_at + coalesce((position - 1) * f.rate_interval, 0) / 1000 END;
END $$;

-- Calls one worker of the line after the end of leases: the first one that no earlier end has called. Its
-- claim calls the next one, if there is more room. Does not look for room: two settlements at once do not see
-- each other's ends, so neither would find room that both make. `groups` are those of the leases.
CREATE OR REPLACE FUNCTION dq.offer_room(f dq.flow, groups text[], t bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    g dq.gate;
    called text;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(dq.lock_key('dq.flow', f.q));
    g := dq.gate_of(f.q);
    -- An older snapshot may not have the job that was parked first.
    IF g.parked > 0 OR current_setting('transaction_isolation') <> 'read committed' THEN
        INSERT INTO dq.note (q, at, grp)
            SELECT f.q, dq.now_ms(), ended FROM unnest(groups) AS ended WHERE ended IS NOT NULL;
    END IF;
    IF g.line = '{}' THEN
        RETURN;
    END IF;
    SELECT waiting INTO called FROM unnest(g.line) WITH ORDINALITY AS line (waiting, position)
        WHERE waiting <> ALL (ARRAY(
            SELECT worker FROM dq.note WHERE q = f.q AND at >= g.read_to AND worker IS NOT NULL))
        ORDER BY position LIMIT 1;
    IF FOUND THEN
        INSERT INTO dq.note (q, at, worker) VALUES (f.q, dq.now_ms(), called);
        PERFORM dq.call_worker(f.q, coalesce(dq.opens_at(f, g.used, t), 0), called);
    END IF;
END $$;

-- The key of an advisory lock: shared by claims from a queue, with limits or without, and exclusive for a
-- change of its limits.
CREATE OR REPLACE FUNCTION dq.limits_key(queue_name text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended('dq.' || queue_name, 0)
$$;

-- Declares a queue's limits, or overrides them. Says whether that changes them.
CREATE OR REPLACE FUNCTION dq.limit_queue(queue_name text, overrides boolean, new_limits jsonb)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    f dq.flow;
    g dq.gate;
    old_group_max bigint;
    queue_id integer;
BEGIN
    SELECT flow.* INTO f FROM dq.flow JOIN dq.queue USING (q) WHERE name = queue_name;
    IF new_limits IS NOT DISTINCT FROM
        (CASE WHEN overrides THEN f.overriding ELSE coalesce(f.declared, '{}') END)
    THEN
        RETURN false;
    END IF;
    queue_id := dq.add_queue(queue_name);
    -- Claims under way do not know the change.
    PERFORM pg_advisory_xact_lock(dq.limits_key(queue_name));
    PERFORM pg_advisory_xact_lock(dq.lock_key('dq.gate', queue_id));
    INSERT INTO dq.flow (q) VALUES (queue_id) ON CONFLICT DO NOTHING;
    SELECT group_max_running INTO old_group_max FROM dq.flow WHERE q = queue_id;
    UPDATE dq.flow SET overriding = CASE WHEN overrides THEN new_limits ELSE overriding END,
            declared = CASE WHEN overrides THEN declared ELSE new_limits END
        WHERE q = queue_id RETURNING * INTO f;
    g := dq.gate_of(queue_id);
    IF f.group_max_running IS DISTINCT FROM old_group_max AND g.parked > 0 THEN
        -- The next claims return the parked jobs.
        g.walk := '';
        g.walk_at := CASE WHEN g.walk_at < 0 THEN -1 ELSE 0 END;
        PERFORM dq.change_gate(g);
    END IF;
    PERFORM dq.call_worker(queue_id, 0, '');
    RETURN true;
END $$;

-- Deletes what the limits had let pass, except the latest: a claim that waits knows the state before. Also
-- deletes late notes, except where a walk reads them.
CREATE OR REPLACE FUNCTION dq.trim_gates() RETURNS void LANGUAGE sql AS $$
    DELETE FROM dq.gate USING (SELECT q, max(n) AS newest FROM dq.gate GROUP BY q) AS last
        WHERE gate.q = last.q AND n < newest - 1000;
    DELETE FROM dq.note WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM dq.note WHERE at < dq.now_ms() - 60000
            AND q <> ALL (ARRAY(SELECT q FROM dq.flow WHERE (dq.gate_of(q)).parked > 0))
        FOR UPDATE SKIP LOCKED));
$$;
