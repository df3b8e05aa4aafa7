-- Schedules dead jobs again. A job whose key a live job has stays dead.
CREATE OR REPLACE FUNCTION dq.replay(queue_name text, ids uuid[], new_time bigint, is_delay boolean)
RETURNS bigint LANGUAGE plpgsql {planned} AS $$
DECLARE
    t bigint := dq.now_ms();
    new_due bigint := CASE WHEN is_delay THEN t + new_time ELSE new_time END;
    queue_id integer := (SELECT q FROM dq.queue WHERE name = queue_name);
    dead record;
    replayed bigint := 0;
BEGIN
    FOR dead IN
        SELECT id FROM dq.job WHERE id = ANY (ids) AND q = queue_id AND state = 2
        ORDER BY array_position(ids, id) FOR UPDATE
    LOOP
        BEGIN
            UPDATE dq.job SET state = 0, at = new_due, due = new_due, first_due = NULL, attempts = 0,
                    losses = 0, last_error = NULL, kind = NULL, message = NULL
                WHERE id = dead.id;
            replayed := replayed + 1;
        EXCEPTION WHEN unique_violation THEN
            NULL;
        END;
    END LOOP;
    IF replayed > 0 THEN
        PERFORM dq.announce_due(queue_id, new_due, t);
    END IF;
    RETURN replayed;
END $$;

-- Removes dead jobs.
CREATE OR REPLACE FUNCTION dq.remove(queue_name text, ids uuid[]) RETURNS bigint
LANGUAGE plpgsql {planned} AS $$
DECLARE
    t bigint := dq.now_ms();
    queue_id integer := (SELECT q FROM dq.queue WHERE name = queue_name);
    j dq.job;
    removed bigint := 0;
BEGIN
    FOR j IN
        SELECT * FROM dq.job WHERE id = ANY (ids) AND q = queue_id AND state = 2
        ORDER BY id FOR UPDATE
    LOOP
        PERFORM dq.end_job(j, 'removed', j.kind || ': ' || j.message, t);
        removed := removed + 1;
    END LOOP;
    RETURN removed;
END $$;

-- Removes up to `most` waiting and dead jobs, and says whether others are left.
CREATE OR REPLACE FUNCTION dq.purge(queue_name text, most integer, OUT removed bigint, OUT more boolean)
LANGUAGE plpgsql {planned} AS $$
DECLARE
    t bigint := dq.now_ms();
    queue_id integer := (SELECT q FROM dq.queue WHERE name = queue_name);
    picked uuid[] := ARRAY(
        SELECT id FROM (
            SELECT * FROM (SELECT id FROM dq.job WHERE q = queue_id AND state = 0
                ORDER BY at, seq LIMIT most + 1) AS waiting
            UNION ALL
            SELECT * FROM (SELECT id FROM dq.job WHERE q = queue_id AND state = 1 AND at <= t
                ORDER BY at, seq LIMIT most + 1) AS expired
            UNION ALL
            SELECT * FROM (SELECT id FROM dq.job WHERE q = queue_id AND state = -1
                ORDER BY at, seq LIMIT most + 1) AS parked
            UNION ALL
            SELECT * FROM (SELECT id FROM dq.job WHERE q = queue_id AND state = 2
                ORDER BY at, seq LIMIT most + 1) AS dead
        ) AS job LIMIT most + 1);
    j dq.job;
BEGIN
    removed := 0;
    more := cardinality(picked) > most;
    FOR j IN
        SELECT * FROM dq.job WHERE id = ANY (picked[:most])
            AND (state IN (-1, 0, 2) OR (state = 1 AND at <= t))
        ORDER BY id FOR UPDATE
    LOOP
        IF j.state = 1 THEN
            j.losses := least(j.losses + 1, 1000000000);
        END IF;
        PERFORM dq.end_job(j, 'removed', j.kind || ': ' || j.message, t);
        removed := removed + 1;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION dq.set_paused(queue_name text, is_paused boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    is_changed boolean;
BEGIN
    IF is_paused THEN
        PERFORM dq.add_queue(queue_name);
    END IF;
    UPDATE dq.queue SET paused = is_paused WHERE name = queue_name AND paused <> is_paused;
    is_changed := FOUND;
    IF NOT is_paused THEN
        -- A throttled queue opens, too.
        UPDATE dq.flow SET closed_until = NULL FROM dq.queue
            WHERE flow.q = queue.q AND name = queue_name AND closed_until > dq.now_ms();
        is_changed := is_changed OR FOUND;
    END IF;
    IF is_changed AND NOT is_paused THEN
        PERFORM dq.hint(dq.bucket_of(queue_name)), dq.call_worker(q, 0, '') FROM dq.queue WHERE name = queue_name;
    END IF;
    RETURN is_changed;
END $$;

-- Announces a runner for `ttl`, or withdraws it if that is zero. Also removes expired announcements.
CREATE OR REPLACE FUNCTION dq.announce(runner_name text, new_info bytea, ttl bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    t bigint := dq.now_ms();
BEGIN
    DELETE FROM dq.runner WHERE until <= t OR (name = runner_name AND ttl = 0);
    IF ttl > 0 THEN
        INSERT INTO dq.runner VALUES (runner_name, new_info, t, t + ttl)
            ON CONFLICT (name) DO UPDATE SET info = excluded.info, at = excluded.at,
                until = excluded.until;
    END IF;
END $$;
