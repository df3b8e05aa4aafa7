-- The interface for other programs and languages: call it in your own transaction. Signatures and
-- meanings stay.

-- Refuses input that the other functions could not store or find. The messages name the parameter.
CREATE OR REPLACE FUNCTION dq.check_input(
    queue text, key text, due timestamptz, headers jsonb, max_attempts bigint, remember interval
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF queue IS NULL OR octet_length(queue) NOT BETWEEN 1 AND 128 OR queue ~ '[[:cntrl:]]' THEN
        RAISE 'dq: queue must have 1 to 128 bytes, without control characters'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF starts_with(queue, 'dq' || '.') THEN
        RAISE 'dq: the queue % is reserved', queue USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(key) NOT BETWEEN 1 AND 255 OR key ~ '[[:cntrl:]]' THEN
        RAISE 'dq: key must have 1 to 255 bytes, without control characters'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF due < 'epoch' OR due >= '10000-01-01 00:00:00+00' THEN
        RAISE 'dq: due must be from 1970 to 9999' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF jsonb_typeof(headers) <> 'object'
        OR EXISTS (SELECT FROM jsonb_each(headers) WHERE jsonb_typeof(value) <> 'string')
    THEN
        RAISE 'dq: headers must be a JSON object whose values are strings'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(headers ->> 'dq-group') NOT BETWEEN 1 AND 128 OR headers ->> 'dq-group' ~ '[[:cntrl:]]' THEN
        RAISE 'dq: the header dq-group must have 1 to 128 bytes, without control characters'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF max_attempts NOT BETWEEN 1 AND 4294967295 THEN
        RAISE 'dq: max_attempts must be from 1 to 4294967295'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF remember NOT BETWEEN interval '0' AND interval '10000 years' THEN
        RAISE 'dq: remember must be from 0 to 10000 years' USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;

-- A time in milliseconds. One that has passed, such as now() in a long transaction, becomes the present,
-- so that claims need not look back (see `announce_due`).
CREATE OR REPLACE FUNCTION dq.from_now_on(moment timestamptz) RETURNS bigint
LANGUAGE sql AS $$
    SELECT greatest(ceil(extract(epoch FROM moment) * 1000)::bigint, dq.now_ms())
$$;

-- Infinity outside the years 1 to 9999: most drivers cannot read such times, and Rust may store any.
CREATE OR REPLACE FUNCTION dq.from_ms(ms bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN ms < -62135596800000 THEN '-infinity' WHEN ms >= 253402300800000 THEN 'infinity'
        ELSE timestamptz 'epoch' + ms * interval '1 millisecond' END
$$;

-- A new id, of version 7: ids ascend in time.
CREATE OR REPLACE FUNCTION dq.new_id() RETURNS uuid LANGUAGE sql AS $$
    SELECT encode(
        overlay(uuid_send(gen_random_uuid())
            PLACING substring(int8send((dq.now_ms() << 16) | 28672 | (random() * 4095)::bigint) FROM 1 FOR 8)
            FROM 1 FOR 8),
        'hex')::uuid
$$;

-- The name of an outcome.
CREATE OR REPLACE FUNCTION dq.outcome_name(outcome integer) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT (ARRAY['created', 'replaced', 'kept', 'already_running', 'ended'])[outcome + 1]
$$;

-- Schedules a job in the caller's transaction: it exists if that commits, and a runner then wakes.
--
-- - `payload`: what the handler gets.
-- - `due`: when; a time that has passed counts as the time of the call.
-- - `key`: at most one live job of the queue has it. `on_conflict` says which job stays: 'keep' (the
--   default), 'replace', 'earliest' or 'latest'. A running job always stays; with `on_running` =
--   'detach', the new job takes its key and is stored, too.
-- - `id`: scheduling a known id changes nothing, so a call can be repeated.
-- - `remember`: for how long the id stays known after the job's end.
--
-- Returns the outcome ('created', 'replaced', 'kept', 'already_running' or 'ended'), and the id and due
-- time of the job that stays.
CREATE OR REPLACE FUNCTION dq.schedule(
    queue text, payload jsonb, due timestamptz, key text DEFAULT NULL,
    on_conflict text DEFAULT 'keep', on_running text DEFAULT 'refuse', id uuid DEFAULT NULL,
    headers jsonb DEFAULT NULL, max_attempts bigint DEFAULT NULL, remember interval DEFAULT NULL,
    OUT outcome text, OUT job_id uuid, OUT job_due timestamptz
) LANGUAGE plpgsql AS $$
DECLARE
    policy integer := array_position(ARRAY['keep', 'replace', 'earliest', 'latest'], on_conflict) - 1;
    stored text[];
BEGIN
    PERFORM dq.check_input(queue, key, due, headers, max_attempts, remember);
    IF payload IS NULL OR due IS NULL THEN
        RAISE 'dq: payload and due must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF policy IS NULL THEN
        RAISE 'dq: on_conflict must be keep, replace, earliest or latest, not %', on_conflict
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF on_running IS NULL OR on_running NOT IN ('refuse', 'detach') THEN
        RAISE 'dq: on_running must be refuse or detach, not %', on_running
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    stored := string_to_array(
        dq.store_job(
            coalesce(id, dq.new_id()), queue, key, dq.from_now_on(due), false, policy,
            on_running = 'detach', nullif(ceil(extract(epoch FROM remember) * 1000)::bigint, 0),
            max_attempts, headers::text, convert_to(payload::text, 'UTF8')),
        ' ');
    outcome := dq.outcome_name(stored[1]::integer);
    job_id := stored[2];
    job_due := dq.from_ms(stored[3]::bigint);
END $$;

-- A time without zone would mean another moment in each session.
CREATE OR REPLACE FUNCTION dq.refuse_local_time() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE 'dq: due is a timestamp without time zone; pass a timestamptz, such as now() + interval ''1 hour'''
        USING ERRCODE = 'invalid_parameter_value';
END $$;

CREATE OR REPLACE FUNCTION dq.schedule(
    queue text, payload jsonb, due timestamp, key text DEFAULT NULL,
    on_conflict text DEFAULT 'keep', on_running text DEFAULT 'refuse', id uuid DEFAULT NULL,
    headers jsonb DEFAULT NULL, max_attempts bigint DEFAULT NULL, remember interval DEFAULT NULL,
    OUT outcome text, OUT job_id uuid, OUT job_due timestamptz
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM dq.refuse_local_time();
END $$;

CREATE OR REPLACE FUNCTION dq.check_target(key text, id uuid) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF (key IS NULL) = (id IS NULL) THEN
        RAISE 'dq: name the job by key or by id' USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;

-- Cancels a job by key or id: 'cancelled', 'not_found' or 'already_running'. A cancelled job never
-- starts.
CREATE OR REPLACE FUNCTION dq.cancel(queue text, key text DEFAULT NULL, id uuid DEFAULT NULL)
RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM dq.check_target(key, id);
    PERFORM dq.check_input(queue, key, NULL, NULL, NULL, NULL);
    RETURN (ARRAY['cancelled', 'not_found', 'already_running'])
        [(dq.cancel_jobs(ARRAY[queue], ARRAY[id], ARRAY[key]))[1] + 1];
END $$;

-- Changes a job's due time: 'moved', 'not_found' or 'already_running'.
CREATE OR REPLACE FUNCTION dq.reschedule(
    queue text, due timestamptz, key text DEFAULT NULL, id uuid DEFAULT NULL
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM dq.check_target(key, id);
    PERFORM dq.check_input(queue, key, due, NULL, NULL, NULL);
    IF due IS NULL THEN
        RAISE 'dq: due must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    RETURN (ARRAY['moved', 'not_found', 'already_running'])
        [(dq.reschedule_jobs(ARRAY[queue], ARRAY[id], ARRAY[key], ARRAY[dq.from_now_on(due)],
            ARRAY[false])).outcomes[1] + 1];
END $$;

-- Refuses a time without zone, as `schedule` does.
CREATE OR REPLACE FUNCTION dq.reschedule(
    queue text, due timestamp, key text DEFAULT NULL, id uuid DEFAULT NULL
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM dq.refuse_local_time();
END $$;

-- Returns a job by id, or the live one with a key; no row if there is none. The state is 'scheduled',
-- 'ready', 'running', 'dead' or 'ended'.
CREATE OR REPLACE FUNCTION dq.get(queue text, key text DEFAULT NULL, id uuid DEFAULT NULL)
RETURNS TABLE (
    job_id uuid, job_key text, state text, due timestamptz, first_due timestamptz,
    created timestamptz, attempts integer, deliveries integer, losses integer, last_error text,
    reason text, headers jsonb, payload bytea
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    t bigint := dq.now_ms();
    wanted_key text := get.key;
    wanted_id uuid := get.id;
    queue_id integer := (SELECT q FROM dq.queue WHERE name = get.queue);
BEGIN
    PERFORM dq.check_target(get.key, get.id);
    PERFORM dq.check_input(get.queue, get.key, NULL, NULL, NULL, NULL);
    RETURN QUERY
        SELECT j.id, j.key,
            CASE WHEN j.state = 1 AND j.at > t THEN 'running' WHEN j.state = 2 THEN 'dead'
                WHEN j.state = 3 THEN 'ended' WHEN j.due > t THEN 'scheduled' ELSE 'ready' END,
            dq.from_ms(j.due), dq.from_ms(coalesce(j.first_due, j.due)), dq.from_ms(j.created),
            j.attempts, j.deliveries, j.losses + (j.state = 1 AND j.at <= t)::integer, j.last_error,
            j.message, j.headers::jsonb, j.payload
        FROM dq.job j
        WHERE j.q = queue_id
            AND ((j.id = wanted_id AND j.state < 4) OR (j.key = wanted_key AND j.state < 2))
            AND (j.state < 3 OR dq.in_history(j.q, j.at, j.seq, t));
END $$;

-- Stores jobs for a statement from Rust. `SqlStatement` describes their form.
CREATE OR REPLACE FUNCTION dq.schedule_jobs(jobs text)
RETURNS TABLE (outcome text, job_id uuid, job_due timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    stored record;
BEGIN
    SELECT result.* INTO stored FROM (
        SELECT array_agg(id) AS ids, array_agg(queue) AS queues, array_agg(key) AS keys,
            array_agg(due) AS times, array_agg(is_delay) AS are_delays,
            array_agg(array_position(ARRAY['keep', 'replace', 'earliest', 'latest'], on_conflict) - 1)
                AS policies,
            array_agg(on_running = 'detach') AS detaches,
            array_agg(nullif(remember, 0)) AS pin_times, array_agg(max_attempts) AS limits,
            array_agg(nullif(headers, '{}')) AS all_headers,
            array_agg(decode(payload, 'hex')) AS payloads
        FROM jsonb_to_recordset(jobs::jsonb) AS job (
            id uuid, queue text, key text, due bigint, is_delay boolean, on_conflict text,
            on_running text, remember bigint, max_attempts bigint, headers text, payload text)
    ) AS job, dq.store(ids, queues, keys, times, are_delays, policies, detaches, pin_times, limits,
        all_headers, payloads) AS result
    WHERE ids IS NOT NULL;
    RETURN QUERY SELECT dq.outcome_name(outcome), id, dq.from_ms(due)
        FROM unnest(stored.outcomes, stored.receipt_ids, stored.receipt_dues)
            AS item (outcome, id, due);
END $$;

-- Ends a lease as done, for a statement from Rust: fails if the lease is lost, so that the caller's
-- transaction does, too. `SqlStatement` describes the lease's form.
CREATE OR REPLACE FUNCTION dq.done(lease text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    job_id uuid := lease::jsonb ->> 'id';
    job_token bigint := lease::jsonb ->> 'token';
BEGIN
    IF dq.settle(ARRAY[job_id], ARRAY[job_token], '{0}', '{0}', '{f}', '{f}', '{NULL}', '{NULL}',
        ARRAY[NULL::bytea]) = '{}'
    THEN
        RAISE 'dq: the lease of job % is lost', job_id USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END $$;
