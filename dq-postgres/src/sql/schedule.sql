-- Stores a job. Returns the outcome, and the id and due time of the job that stays, separated by spaces:
-- planning a call with several result columns would cost more than the rest of it. Outcomes: 0 created,
-- 1 replaced, 2 kept, 3 already running, 4 ended.
CREATE OR REPLACE FUNCTION dq.store_job(
    new_id uuid, queue_name text, new_key text, due_time bigint, is_delay boolean, policy integer,
    detach boolean, pin_time bigint, attempt_limit bigint, new_headers text, new_payload bytea
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    t bigint := dq.now_ms();
    new_due bigint := CASE WHEN is_delay THEN t + due_time ELSE due_time END;
    new_seq bigint := nextval('dq.job_seq');
    outcome integer := 0;
    receipt_id uuid := new_id;
    receipt_due bigint := new_due;
BEGIN
    -- Conflicts are rare: insert first.
    INSERT INTO dq.job (id, seq, at, due, created, q, remember, max_attempts, key, headers, payload)
        SELECT new_id, new_seq, new_due, new_due, t, q, pin_time, attempt_limit, new_key, new_headers,
            new_payload
        FROM dq.queue WHERE name = queue_name
        ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT * INTO outcome, receipt_id, receipt_due FROM dq.store_one(new_id, new_seq, queue_name,
            new_key, new_due, policy, detach, pin_time, attempt_limit, new_headers, new_payload, t);
    END IF;
    IF outcome < 2 AND receipt_due < t + 1500 THEN
        PERFORM dq.announce_due(q, receipt_due, t) FROM dq.queue WHERE name = queue_name;
    END IF;
    RETURN concat_ws(' ', outcome, receipt_id, receipt_due);
END $$;

-- Stores new jobs of one queue, without keys. Returns its time, to which delays were added; or null, and
-- stores nothing, if an id is taken. An INSERT that may not conflict costs less.
CREATE OR REPLACE FUNCTION dq.store_new(
    ids uuid[], queue_name text, times bigint[], are_delays boolean, pin_times bigint[],
    limits bigint[], all_headers text[], payloads bytea[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    t bigint := dq.now_ms();
    origin bigint := CASE WHEN are_delays THEN t ELSE 0 END;
    queue_id integer := dq.add_queue(queue_name);
BEGIN
    BEGIN
        INSERT INTO dq.job (id, seq, at, due, created, q, remember, max_attempts, headers, payload)
            SELECT id, nextval('dq.job_seq'), origin + due_time, origin + due_time, t, queue_id, remember,
                max_attempts, headers, payload
            FROM unnest(ids, times, pin_times, limits, all_headers, payloads)
                AS item (id, due_time, remember, max_attempts, headers, payload);
    EXCEPTION WHEN unique_violation THEN
        RETURN NULL;
    END;
    IF t + 1500 - origin > ANY (times) THEN
        PERFORM dq.announce_due(queue_id, origin + min(due_time), t) FROM unnest(times) AS item (due_time);
    END IF;
    RETURN t;
END $$;

-- Stores any jobs. Returns for each what `store_job` does.
CREATE OR REPLACE FUNCTION dq.store(
    ids uuid[], queues text[], keys text[], times bigint[], are_delays boolean[],
    policies integer[], detaches boolean[], pin_times bigint[], limits bigint[], all_headers text[],
    payloads bytea[], OUT outcomes integer[], OUT receipt_ids uuid[], OUT receipt_dues bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    t bigint := dq.now_ms();
    n integer := cardinality(ids);
    -- In the caller's order, also of jobs that conflicts delay.
    seqs bigint[];
    inserted uuid[];
    i integer;
    result record;
BEGIN
    receipt_ids := ids;
    seqs := ARRAY(SELECT nextval('dq.job_seq') FROM generate_series(1, n));
    receipt_dues := ARRAY(SELECT CASE WHEN is_delay THEN t + time ELSE time END
        FROM unnest(times, are_delays) AS item (time, is_delay));
    outcomes := array_fill(0, ARRAY[n]);
    -- Sorted by key, here and below, so that two calls with the same keys do not wait for each other
    -- in a circle.
    WITH new AS (
        INSERT INTO dq.job
            (id, seq, at, due, created, q, remember, max_attempts, key, headers, payload)
        SELECT id, seq, due, due, t, q, remember, max_attempts, key, headers, payload
        FROM (
            -- The first job with an id takes it.
            SELECT DISTINCT ON (id) *
            FROM unnest(ids, seqs, queues, keys, receipt_dues, pin_times, limits, all_headers, payloads)
                AS item (id, seq, queue, key, due, remember, max_attempts, headers, payload)
            ORDER BY id, seq) AS item
            JOIN dq.queue ON queue.name = item.queue
        ORDER BY q, key, seq
        ON CONFLICT DO NOTHING
        RETURNING id)
    SELECT array_agg(id) INTO inserted FROM new;
    IF inserted IS NULL OR cardinality(inserted) < n THEN
        FOR i IN
            SELECT number FROM unnest(ids, queues, keys) WITH ORDINALITY AS item (id, queue, key, number)
            ORDER BY row_number() OVER (PARTITION BY id ORDER BY number), queue, key, number
        LOOP
            CONTINUE WHEN ids[i] = ANY (inserted) AND array_position(ids, ids[i]) = i;
            result := dq.store_one(ids[i], seqs[i], queues[i], keys[i], receipt_dues[i], policies[i],
                detaches[i], pin_times[i], limits[i], all_headers[i], payloads[i], t);
            outcomes[i] := result.outcome;
            receipt_ids[i] := result.receipt_id;
            receipt_dues[i] := result.receipt_due;
        END LOOP;
    END IF;
    IF t + 1500 > ANY (receipt_dues) THEN
        PERFORM dq.announce_due(q, min(due), t)
            FROM unnest(queues, receipt_dues, outcomes) AS item (queue, due, outcome)
                JOIN dq.queue ON queue.name = item.queue
            WHERE outcome < 2 GROUP BY q;
    END IF;
END $$;

-- Stores a job that an insert has found in conflict with another, or whose queue is new.
CREATE OR REPLACE FUNCTION dq.store_one(
    new_id uuid, new_seq bigint, new_queue text, new_key text, new_due bigint, policy integer, detach boolean,
    pin_time bigint, attempt_limit bigint, new_headers text, new_payload bytea, t bigint,
    OUT outcome integer, OUT receipt_id uuid, OUT receipt_due bigint
) LANGUAGE plpgsql {planned} AS $$
DECLARE
    queue_id integer := dq.add_queue(new_queue);
    other dq.job;
    is_pinned boolean;
BEGIN
    outcome := 0;
    LOOP
        receipt_id := new_id;
        receipt_due := new_due;
        INSERT INTO dq.job (id, seq, at, due, created, q, remember, max_attempts, key, headers, payload)
            VALUES (new_id, new_seq, new_due, new_due, t, queue_id, pin_time,
                attempt_limit, new_key, new_headers, new_payload)
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN;
        END IF;
        SELECT * INTO other FROM dq.job WHERE id = new_id FOR UPDATE;
        IF FOUND THEN
            -- An ended job keeps its id while it is pinned or in its queue's history.
            is_pinned := coalesce(other.pinned > t, false);
            IF other.state > 2 AND NOT is_pinned
                AND (other.state = 4 OR NOT dq.in_history(other.q, other.at, other.seq, t))
            THEN
                DELETE FROM dq.job WHERE id = new_id;
                CONTINUE;
            END IF;
            outcome := CASE WHEN other.state > 2 AND (is_pinned OR other.q = queue_id) THEN 4
                WHEN other.q = queue_id THEN 0 ELSE 2 END;
            receipt_due := other.due;
            RETURN;
        END IF;
        -- Waits for a call that is about to claim, settle or cancel it. If this job's own settlement was
        -- committed just now, the job is back under its id, and the key's new owner stays.
        SELECT * INTO other FROM dq.job
            WHERE q = queue_id AND key = new_key AND state < 2
                AND NOT EXISTS (SELECT FROM dq.job WHERE id = new_id) FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        receipt_id := other.id;
        receipt_due := other.due;
        IF other.state = 1 AND other.at > t THEN
            IF NOT detach THEN
                outcome := 3;
                RETURN;
            END IF;
            UPDATE dq.job SET key = NULL WHERE id = other.id;
            CONTINUE;
        END IF;
        IF policy = 0 OR (policy = 2 AND new_due >= other.due) OR (policy = 3 AND new_due <= other.due)
        THEN
            outcome := 2;
            RETURN;
        END IF;
        -- An expired lease was lost.
        other.losses := least(other.losses + greatest(other.state, 0), 1000000000);
        PERFORM dq.end_job(other, 'replaced', NULL, t);
        outcome := 1;
    END LOOP;
END $$;
