-- Ends leases, no job twice. Returns the jobs whose leases were held. Verdicts: 0 done, 1 skip, 2 retry,
-- 3 snooze, 4 again, 5 dead, 6 release. A flag says that the attempt of a dead job counts, or that a
-- released job has started. A text is the reason or the error.
CREATE OR REPLACE FUNCTION dq.settle(
    ids uuid[], tokens bigint[], verdicts integer[], times bigint[], are_delays boolean[],
    flags boolean[], texts text[], kinds text[], payloads bytea[]
) RETURNS uuid[] LANGUAGE plpgsql {planned} AS $$
DECLARE
    t bigint := dq.now_ms();
    held uuid[];
    deleted uuid[];
    requeued uuid[];
    new_due bigint;
    changed record;
BEGIN
    IF cardinality(ids) > 1 THEN
        -- Locks in one order, like `renew`.
        PERFORM FROM dq.job WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    END IF;
    WITH kept AS (
        UPDATE dq.job j SET state = CASE WHEN max > 0 THEN 3 ELSE 4 END,
            at = CASE WHEN max > 0 THEN t ELSE t + remember END, pinned = t + remember,
            kind = CASE verdict WHEN 0 THEN 'done' ELSE 'skipped' END, message = reason,
            headers = NULL, payload = ''
        FROM unnest(ids, tokens, verdicts, texts) AS lease (id, token, verdict, reason), dq.history_limit AS history
        WHERE j.id = lease.id AND j.token = lease.token AND j.state = 1 AND j.at > t AND verdict < 2
            AND history.q = j.q AND (max > 0 OR remember > 0)
        RETURNING j.id, j.q, j.kind),
    tallied AS (INSERT INTO dq.tally SELECT q, kind, count(*) FROM kept GROUP BY q, kind)
    SELECT coalesce(array_agg(id), '{}') INTO held FROM kept;
    WITH gone AS (
        DELETE FROM dq.job j USING unnest(ids, tokens, verdicts) AS lease (id, token, verdict)
        WHERE j.id = lease.id AND j.token = lease.token AND j.state = 1 AND j.at > t AND verdict < 2
        RETURNING j.id, j.q, CASE verdict WHEN 0 THEN 'done' ELSE 'skipped' END AS kind),
    tallied AS (INSERT INTO dq.tally SELECT q, kind, count(*) FROM gone GROUP BY q, kind)
    SELECT array_agg(id) INTO deleted FROM gone;
    held := held || deleted;
    FOR i IN 1..cardinality(ids) LOOP
        CONTINUE WHEN verdicts[i] < 2;
        new_due := CASE WHEN are_delays[i] THEN t + times[i] ELSE times[i] END;
        UPDATE dq.job SET
            state = CASE verdicts[i] WHEN 5 THEN 2 ELSE 0 END,
            at = CASE verdicts[i] WHEN 5 THEN t WHEN 6 THEN due ELSE new_due END,
            due = CASE WHEN verdicts[i] < 5 THEN new_due ELSE due END,
            first_due = CASE WHEN verdicts[i] < 4 THEN coalesce(first_due, due)
                WHEN verdicts[i] = 4 THEN NULL ELSE first_due END,
            attempts = CASE WHEN verdicts[i] = 2 OR (verdicts[i] = 5 AND flags[i]) THEN attempts + 1
                WHEN verdicts[i] = 4 THEN 0 ELSE attempts END,
            deliveries = deliveries - (verdicts[i] = 6 AND NOT flags[i])::integer,
            losses = CASE WHEN verdicts[i] < 5 THEN 0 ELSE losses END,
            last_error = CASE verdicts[i] WHEN 2 THEN texts[i] WHEN 4 THEN NULL ELSE last_error END,
            kind = kinds[i],
            message = CASE verdicts[i] WHEN 5 THEN texts[i] END,
            payload = coalesce(payloads[i], payload)
            WHERE id = ids[i] AND token = tokens[i] AND state = 1 AND at > t
            RETURNING id, state INTO changed;
        IF FOUND THEN
            held := held || changed.id;
            IF changed.state = 0 THEN
                requeued := requeued || changed.id;
            END IF;
        END IF;
    END LOOP;
    IF requeued IS NOT NULL THEN
        PERFORM dq.announce_jobs(requeued, t);
    END IF;
    RETURN held;
END $$;
