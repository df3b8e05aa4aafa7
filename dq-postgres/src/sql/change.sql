-- Finds a live job by id or key, and locks it.
CREATE OR REPLACE FUNCTION dq.find_live(queue_name text, job_id uuid, job_key text) RETURNS dq.job
LANGUAGE plpgsql AS $$
DECLARE
    j dq.job;
    queue_id integer := (SELECT q FROM dq.queue WHERE name = queue_name);
BEGIN
    IF job_id IS NOT NULL THEN
        SELECT * INTO j FROM dq.job WHERE id = job_id FOR UPDATE;
        IF j.q <> queue_id OR j.state > 1 OR queue_id IS NULL THEN
            RETURN NULL;
        END IF;
        RETURN j;
    END IF;
    LOOP
        SELECT * INTO j FROM dq.job WHERE q = queue_id AND key = job_key AND state < 2 FOR UPDATE;
        -- While this waited for the job, another may have replaced it.
        EXIT WHEN FOUND OR NOT EXISTS (
            SELECT FROM dq.job WHERE q = queue_id AND key = job_key AND state < 2);
    END LOOP;
    RETURN j;
END $$;

-- Outcomes: 0 cancelled, 1 not found, 2 already running.
CREATE OR REPLACE FUNCTION dq.cancel_jobs(queues text[], ids uuid[], keys text[]) RETURNS integer[]
LANGUAGE plpgsql {planned} AS $$
DECLARE
    t bigint := dq.now_ms();
    j dq.job;
    outcomes integer[] := array_fill(1, ARRAY[cardinality(queues)]);
BEGIN
    FOR i IN 1..cardinality(queues) LOOP
        j := dq.find_live(queues[i], ids[i], keys[i]);
        CONTINUE WHEN j.id IS NULL;
        IF j.state = 1 AND j.at > t THEN
            outcomes[i] := 2;
        ELSE
            j.losses := least(j.losses + greatest(j.state, 0), 1000000000);
            PERFORM dq.end_job(j, 'cancelled', NULL, t);
            outcomes[i] := 0;
        END IF;
    END LOOP;
    RETURN outcomes;
END $$;

-- Outcomes: 0 moved, 1 not found, 2 already running.
CREATE OR REPLACE FUNCTION dq.reschedule_jobs(
    queues text[], ids uuid[], keys text[], times bigint[], are_delays boolean[],
    OUT outcomes integer[], OUT receipt_ids uuid[], OUT receipt_dues bigint[]
) LANGUAGE plpgsql {planned} AS $$
DECLARE
    t bigint := dq.now_ms();
    j dq.job;
    moved uuid[];
BEGIN
    outcomes := array_fill(1, ARRAY[cardinality(queues)]);
    receipt_ids := ids;
    receipt_dues := times;
    FOR i IN 1..cardinality(queues) LOOP
        j := dq.find_live(queues[i], ids[i], keys[i]);
        CONTINUE WHEN j.id IS NULL;
        IF j.state = 1 AND j.at > t THEN
            outcomes[i] := 2;
            CONTINUE;
        END IF;
        IF are_delays[i] THEN
            receipt_dues[i] := t + times[i];
        END IF;
        PERFORM dq.leave_group(j);
        UPDATE dq.job SET state = 0, at = receipt_dues[i], due = receipt_dues[i], first_due = NULL,
                losses = least(losses + greatest(state, 0), 1000000000)
            WHERE id = j.id;
        outcomes[i] := 0;
        receipt_ids[i] := j.id;
        moved := moved || j.id;
    END LOOP;
    PERFORM dq.announce_jobs(moved, t);
END $$;
