-- Adds the tallied jobs to the queues' totals.
CREATE OR REPLACE FUNCTION dq.fold_tally() RETURNS void LANGUAGE sql AS $$
    WITH counted AS (DELETE FROM dq.tally RETURNING q, ending, jobs),
    sums AS (
        SELECT q, coalesce(sum(jobs) FILTER (WHERE ending = 'done'), 0) AS done,
            coalesce(sum(jobs) FILTER (WHERE ending = 'skipped'), 0) AS skipped,
            coalesce(sum(jobs) FILTER (WHERE ending = 'cancelled'), 0) AS cancelled,
            coalesce(sum(jobs) FILTER (WHERE ending = 'replaced'), 0) AS replaced,
            coalesce(sum(jobs) FILTER (WHERE ending = 'removed'), 0) AS removed
        FROM counted GROUP BY q)
    UPDATE dq.queue SET done = queue.done + sums.done, skipped = queue.skipped + sums.skipped,
            cancelled = queue.cancelled + sums.cancelled, replaced = queue.replaced + sums.replaced,
            removed = queue.removed + sums.removed
        FROM sums WHERE queue.q = sums.q;
$$;

-- Removes up to `most` of a queue's ended jobs beyond its history limit. Begins at the time `from_at`, or a
-- minute ago. Returns where to begin next time, and whether there may be more. Jobs that come behind that
-- time, because their transaction commits late, wait for a trim from the beginning.
CREATE OR REPLACE FUNCTION dq.trim_history(
    queue_name text, from_at bigint, most integer, OUT next_at bigint, OUT more boolean
) LANGUAGE plpgsql {planned} AS $$
DECLARE
    t bigint := dq.now_ms();
    history dq.history_limit;
    oldest bigint;
    last_at bigint;
    last_seq bigint := 9223372036854775807;
    beyond record;
    removed integer := 0;
BEGIN
    next_at := coalesce(from_at, t - 60000);
    SELECT * INTO history FROM dq.history_limit
        WHERE q = (SELECT q FROM dq.queue WHERE name = queue_name);
    oldest := t - history.age;
    last_at := oldest - 1;
    SELECT at, seq INTO beyond FROM dq.job WHERE q = history.q AND state = 3 AND at >= oldest
        ORDER BY at DESC, seq DESC OFFSET history.max LIMIT 1;
    IF FOUND THEN
        last_at := beyond.at;
        last_seq := beyond.seq;
    END IF;
    FOR beyond IN
        SELECT id, at, pinned FROM dq.job
        WHERE q = history.q AND state = 3 AND at >= next_at AND (at, seq) <= (last_at, last_seq)
        ORDER BY at, seq LIMIT most FOR UPDATE SKIP LOCKED
    LOOP
        IF beyond.pinned > t THEN
            UPDATE dq.job SET state = 4, at = pinned WHERE id = beyond.id;
        ELSE
            DELETE FROM dq.job WHERE id = beyond.id;
        END IF;
        next_at := beyond.at;
        removed := removed + 1;
    END LOOP;
    more := removed = most;
    IF NOT more THEN
        next_at := greatest(next_at, least(last_at, t - 60000));
    END IF;
END $$;

-- Frees up to `most` ids of a queue that are no longer pinned. Begins and returns like `trim_history`.
CREATE OR REPLACE FUNCTION dq.remove_pins(
    queue_name text, from_at bigint, most integer, OUT next_at bigint, OUT more boolean
) LANGUAGE plpgsql {planned} AS $$
DECLARE
    t bigint := dq.now_ms();
    unpinned uuid[];
BEGIN
    next_at := coalesce(from_at, t - 60000);
    SELECT coalesce(array_agg(id), '{}'), coalesce(max(at), next_at) INTO unpinned, next_at FROM (
        SELECT id, at FROM dq.job
        WHERE q = (SELECT q FROM dq.queue WHERE name = queue_name)
            AND state = 4 AND at BETWEEN next_at AND t
        ORDER BY at, seq LIMIT most FOR UPDATE SKIP LOCKED) AS first;
    DELETE FROM dq.job WHERE id = ANY (unpinned);
    more := cardinality(unpinned) = most;
    IF NOT more THEN
        next_at := greatest(next_at, t - 60000);
    END IF;
END $$;

-- Raises queues' floors, and deletes old rows of `rewind`.
CREATE OR REPLACE FUNCTION dq.raise_floors(
    queue_names text[], floors bigint[], expired_floors bigint[], last_rewinds bigint[]
) RETURNS void LANGUAGE sql AS $$
    WITH raised AS (
        UPDATE dq.queue SET floor = raised.floor, rewound = raised.rewound,
            expired_floor = greatest(queue.expired_floor, raised.expired_floor)
        FROM unnest(queue_names, floors, expired_floors, last_rewinds)
            AS raised (name, floor, expired_floor, rewound)
        WHERE queue.name = raised.name AND queue.floor < raised.floor
        RETURNING q, raised.rewound)
    DELETE FROM dq.rewind USING raised
        WHERE rewind.q = raised.q AND rewind.n <= raised.rewound AND rewind.t < dq.now_ms() - 60000;
$$;

-- Sets history limits: the default, unless `default_max` is null, and those of single queues.
CREATE OR REPLACE FUNCTION dq.limit_histories(
    default_max integer, default_age bigint, names text[], maxes integer[], ages bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE dq.meta SET history_max = default_max, history_age = default_age
        WHERE (history_max, history_age) <> (default_max, default_age);
    FOR i IN 1..cardinality(names) LOOP
        PERFORM dq.add_queue(names[i]);
        UPDATE dq.queue SET history_max = maxes[i], history_age = ages[i]
            WHERE name = names[i] AND (history_max, history_age) IS DISTINCT FROM (maxes[i], ages[i]);
    END LOOP;
END $$;
