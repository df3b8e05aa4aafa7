-- {planned} stands for settings: statements with arrays get plans that use the indexes, whatever the
-- tables' statistics say.

CREATE OR REPLACE FUNCTION dq.now_ms() RETURNS bigint
LANGUAGE sql AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;

-- A queue's bucket, from 0 to 23. Processes are notified of buckets.
CREATE OR REPLACE FUNCTION dq.bucket_of(name text) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
    SELECT get_byte(decode(md5(name), 'hex'), 0) % 24
$$;

-- Notifies the processes that listen to a bucket, at commit. Commits that notify wait for each other
-- in the whole server, so only the first caller in 10 ms notifies a bucket; a process claims again
-- shortly after it, for callers that commit meanwhile. If the first caller rolls back or commits much
-- later, the claim that each process makes once a second finds the others' jobs.
CREATE OR REPLACE FUNCTION dq.hint(bucket integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    tick bigint := dq.now_ms() / 10;
    last bigint := (SELECT last_value FROM dq.hints);
    notified bigint := CASE WHEN last >> 24 = tick THEN last & 16777215 ELSE 0 END;
BEGIN
    IF (notified >> bucket) & 1 = 0 THEN
        PERFORM setval('dq.hints', (tick << 24) | notified | (1::bigint << bucket));
        PERFORM pg_notify('{channel}', bucket::text);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION dq.add_queue(queue_name text) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    queue_id integer;
BEGIN
    LOOP
        SELECT q INTO queue_id FROM dq.queue WHERE name = queue_name;
        IF FOUND THEN
            RETURN queue_id;
        END IF;
        INSERT INTO dq.queue (name, bucket) VALUES (queue_name, dq.bucket_of(queue_name))
            ON CONFLICT DO NOTHING;
    END LOOP;
END $$;

-- To call when a job comes to wait at `due_at`, at the time `t`.
CREATE OR REPLACE FUNCTION dq.announce_due(queue_id integer, due_at bigint, t bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF due_at < t - 50 THEN
        INSERT INTO dq.rewind (q, at, t) VALUES (queue_id, due_at, dq.now_ms());
    END IF;
    IF due_at < t + 1500 THEN
        PERFORM dq.hint(bucket) FROM dq.queue WHERE q = queue_id;
    END IF;
END $$;

-- The same for jobs.
CREATE OR REPLACE FUNCTION dq.announce_jobs(ids uuid[], t bigint) RETURNS void
LANGUAGE plpgsql {planned} AS $$
BEGIN
    PERFORM dq.announce_due(q, min(at), t) FROM dq.job WHERE id = ANY (ids) GROUP BY q;
END $$;

-- Ends a job that the caller has locked and read as `j`.
CREATE OR REPLACE FUNCTION dq.end_job(j dq.job, ending text, reason text, t bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    in_history boolean := (SELECT max > 0 FROM dq.history_limit WHERE q = j.q);
BEGIN
    PERFORM dq.leave_group(j);
    INSERT INTO dq.tally VALUES (j.q, ending, 1);
    IF in_history OR j.remember > 0 THEN
        UPDATE dq.job SET state = CASE WHEN in_history THEN 3 ELSE 4 END,
                at = CASE WHEN in_history THEN t ELSE t + remember END, pinned = t + remember,
                losses = j.losses, kind = ending, message = reason, headers = NULL, payload = ''
            WHERE id = j.id;
    ELSE
        DELETE FROM dq.job WHERE id = j.id;
    END IF;
END $$;

-- Whether a job in state 3 is within its queue's history limit, at the time `t`.
CREATE OR REPLACE FUNCTION dq.in_history(queue_id integer, ended_at bigint, job_seq bigint, t bigint)
RETURNS boolean LANGUAGE sql {planned} AS $$
    SELECT ended_at >= t - age AND max > (
        SELECT count(*) FROM (
            SELECT FROM dq.job
            WHERE q = queue_id AND state = 3 AND (at, seq) > (ended_at, job_seq)
            LIMIT max) AS newer)
    FROM dq.history_limit WHERE q = queue_id
$$;
