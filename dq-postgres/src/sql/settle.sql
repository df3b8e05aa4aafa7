-- Ends leases, sorted by id and no job twice. Returns the jobs whose leases were held. Verdicts: 0 done,
-- 1 skip, 2 retry, 3 snooze, 4 again, 5 dead, 6 release, 7 snooze, and throttle the queue. A flag says that
-- the attempt of a dead job counts, or that a released job has started. A text is the reason or the error.
CREATE OR REPLACE FUNCTION dq.settle(
    ids uuid[], tokens bigint[], verdicts integer[], times bigint[], are_delays boolean[],
    flags boolean[], texts text[], kinds text[], payloads bytea[]
) RETURNS uuid[] LANGUAGE plpgsql {planned} AS $$
DECLARE
    t bigint := dq.now_ms();
    held uuid[];
    requeued uuid[];
    -- Queues in which a lease has ended.
    touched integer[];
    groups text[];
    throttled integer[];
    throttles bigint[];
    new_due bigint;
    changed record;
BEGIN
    -- The statements below would take the locks in turns, not in one order, like `renew`.
    IF cardinality(ids) > 1 AND 2 <= ANY (verdicts) THEN
        PERFORM FROM dq.job WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    END IF;
    WITH gone AS (
        DELETE FROM dq.job j USING unnest(ids, tokens, verdicts, texts) AS lease (id, token, verdict, reason)
        WHERE j.id = lease.id AND j.token = lease.token AND j.state = 1 AND j.at > t AND verdict < 2
        RETURNING j.id, j.seq, j.due, j.created, j.q, j.attempts, j.deliveries, j.losses, j.first_due,
            j.token, j.since, j.remember, j.max_attempts, j.key, j.worker, j.last_error, j.grp,
            CASE verdict WHEN 0 THEN 'done' ELSE 'skipped' END AS kind, reason),
    tallied AS (INSERT INTO dq.tally SELECT q, kind, count(*) FROM gone GROUP BY q, kind),
    kept AS (
        INSERT INTO dq.job (id, seq, at, due, created, q, state, attempts, deliveries, losses, first_due,
            token, since, remember, pinned, max_attempts, key, worker, last_error, kind, message, payload)
        SELECT id, seq, CASE WHEN max > 0 THEN t ELSE t + remember END, due, created, q,
            CASE WHEN max > 0 THEN 3 ELSE 4 END, attempts, deliveries, losses, first_due, token, since,
            remember, t + remember, max_attempts, key, worker, last_error, kind, reason, ''
        FROM gone JOIN dq.history_limit AS history USING (q) WHERE max > 0 OR remember > 0)
    SELECT coalesce(array_agg(id), '{}'), array_agg(q), array_agg(grp) INTO held, touched, groups FROM gone;
    FOR i IN 1..cardinality(ids) LOOP
        CONTINUE WHEN verdicts[i] < 2;
        new_due := CASE WHEN are_delays[i] THEN t + times[i] ELSE times[i] END;
        UPDATE dq.job SET
            state = CASE verdicts[i] WHEN 5 THEN 2 ELSE 0 END,
            at = CASE verdicts[i] WHEN 5 THEN t WHEN 6 THEN due ELSE new_due END,
            due = CASE WHEN verdicts[i] NOT IN (5, 6) THEN new_due ELSE due END,
            first_due = CASE WHEN verdicts[i] IN (2, 3, 7) THEN coalesce(first_due, due)
                WHEN verdicts[i] = 4 THEN NULL ELSE first_due END,
            attempts = CASE WHEN verdicts[i] = 2 OR (verdicts[i] = 5 AND flags[i]) THEN least(attempts + 1, 1000000000)
                WHEN verdicts[i] = 4 THEN 0 ELSE attempts END,
            deliveries = deliveries - (verdicts[i] = 6 AND NOT flags[i])::integer,
            losses = CASE WHEN verdicts[i] NOT IN (5, 6) THEN 0 ELSE losses END,
            last_error = CASE verdicts[i] WHEN 2 THEN texts[i] WHEN 4 THEN NULL ELSE last_error END,
            kind = kinds[i],
            message = CASE verdicts[i] WHEN 5 THEN texts[i] END,
            payload = coalesce(payloads[i], payload)
            WHERE id = ids[i] AND token = tokens[i] AND state = 1 AND at > t
            RETURNING id, state, q, grp INTO changed;
        IF FOUND THEN
            held := held || changed.id;
            touched := touched || changed.q;
            groups := groups || changed.grp;
            IF verdicts[i] = 7 THEN
                throttled := throttled || changed.q;
                throttles := throttles || least(new_due, 9000000000000000);
            END IF;
            IF changed.state = 0 THEN
                requeued := requeued || changed.id;
            END IF;
        END IF;
    END LOOP;
    IF requeued IS NOT NULL THEN
        PERFORM dq.announce_jobs(requeued, t);
    END IF;
    -- In one order of queues, like claims.
    IF throttled IS NOT NULL THEN
        INSERT INTO dq.flow (q, closed_until)
            SELECT q, max(closed_until) FROM unnest(throttled, throttles) AS throttle (q, closed_until)
            GROUP BY q ORDER BY q
            ON CONFLICT (q) DO UPDATE SET closed_until = excluded.closed_until
            WHERE flow.closed_until IS NULL OR flow.closed_until < excluded.closed_until;
    END IF;
    IF EXISTS (SELECT FROM dq.flow WHERE q = ANY (touched)) THEN
        PERFORM dq.offer_room(
                f, ARRAY(SELECT grp FROM unnest(touched, groups) AS ended (q, grp) WHERE q = f.q), t)
            FROM dq.flow f
            WHERE q = ANY (touched) AND coalesce(max_running, group_max_running) IS NOT NULL;
    END IF;
    RETURN held;
END $$;
