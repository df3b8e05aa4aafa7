-- Groups: at most `group_max_running` jobs of each run at once.
--
-- A claim that meets a due job of a full group parks it in the group's line, where later claims do not meet
-- it. When a lease of the group ends, or a waiting job leaves its place, a row of `group_room` says so, and
-- the next claim returns the line's first job. So each parked job is later than as many of its group's other
-- waiting jobs as may start. Only claims park and return jobs, under the gate's lock: they see each other's
-- work, and a settlement waits for no claim, whatever its transaction's isolation.
--
-- A returned job looks like an expired lease, because claims find these from their bounds on, however
-- early they were due. Its `losses` are one less, because none was lost.

-- The group in a job's headers, as it is written there.
CREATE OR REPLACE FUNCTION dq.group_of(headers text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN headers LIKE '%"dq-group"%' THEN
        left(substring(headers FROM '[{,]\s*"dq-group"\s*:\s*"((?:[^"\\]|\\.)*)"'), 500) END
$$;

-- How many jobs of a group may start.
CREATE OR REPLACE FUNCTION dq.room_in_group(f dq.flow, group_name text, t bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    RETURN f.group_max_running - (SELECT count(*) FROM (
        SELECT FROM dq.job WHERE q = f.q AND state = 1 AND grp = group_name AND at > t
        LIMIT f.group_max_running) AS running);
END $$;

-- To call before a waiting job ends or moves.
CREATE OR REPLACE FUNCTION dq.leave_group(j dq.job) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF j.state < 2 AND dq.group_of(j.headers) IS NOT NULL THEN
        INSERT INTO dq.group_room (q, at, grp) SELECT q, dq.now_ms(), dq.group_of(j.headers)
            FROM dq.flow WHERE q = j.q AND group_max_running IS NOT NULL;
    END IF;
END $$;

-- Returns parked jobs of groups with room, and says how many rows of `group_room` it has read. No lease
-- expires before `from_expired`.
CREATE OR REPLACE FUNCTION dq.return_parked(
    f dq.flow, room_at bigint, from_expired bigint, t bigint, OUT ended integer, OUT returned integer
) LANGUAGE plpgsql AS $$
DECLARE
    groups text[];
    expired_groups text[];
    expired tid[];
BEGIN
    -- Before the leases are counted: whatever ends from now on comes with a new row.
    WITH room AS (DELETE FROM dq.group_room r WHERE r.q = f.q AND r.at >= room_at RETURNING r.grp)
    SELECT coalesce(array_agg(grp), '{}') INTO groups FROM room;
    ended := cardinality(groups);
    SELECT array_agg(place), array_agg(grp) INTO expired, expired_groups FROM (
        SELECT j.ctid AS place, j.grp FROM dq.job j
        WHERE j.q = f.q AND j.state = 1 AND j.at <= t AND j.at >= from_expired AND j.grp IS NOT NULL
        ORDER BY j.at LIMIT 10000 FOR UPDATE SKIP LOCKED) AS lease;
    IF expired IS NOT NULL THEN
        UPDATE dq.job SET grp = NULL WHERE ctid = ANY (expired);
        groups := groups || expired_groups;
    END IF;
    returned := 0;
    IF groups <> '{}' THEN
        UPDATE dq.job SET state = 1, at = t, grp = NULL, losses = losses - 1 WHERE ctid = ANY (ARRAY(
            SELECT first.place
            FROM (SELECT grp, count(*) AS ends FROM unnest(groups) AS grp GROUP BY grp) AS room,
                LATERAL (
                    SELECT j.ctid AS place FROM dq.job j
                    WHERE j.q = f.q AND j.state = -1 AND j.grp = room.grp ORDER BY j.at, j.seq
                    LIMIT least(room.ends, dq.room_in_group(f, room.grp, t)) FOR UPDATE SKIP LOCKED) AS first));
        GET DIAGNOSTICS returned = ROW_COUNT;
    END IF;
END $$;

-- Notes groups that have a line and room. Rows of `group_room` that were committed late, or never written
-- because another program changed a job, would leave them waiting. Returns whether there are any.
CREATE OR REPLACE FUNCTION dq.find_group_room(f dq.flow, t bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO dq.group_room (q, at, grp)
        WITH RECURSIVE line (grp) AS (
            SELECT min(j.grp) FROM dq.job j WHERE j.q = f.q AND j.state = -1 AND j.grp IS NOT NULL
            UNION ALL
            SELECT (SELECT min(j.grp) FROM dq.job j WHERE j.q = f.q AND j.state = -1 AND j.grp > line.grp)
            FROM line WHERE line.grp IS NOT NULL)
        SELECT f.q, t, line.grp FROM line
        WHERE line.grp IS NOT NULL AND dq.room_in_group(f, line.grp, t) > 0;
    RETURN FOUND;
END $$;

-- Of jobs that a claim has locked, returns up to `most` whose groups have room, and parks those of full
-- groups.
CREATE OR REPLACE FUNCTION dq.park_full(
    f dq.flow, places tid[], most integer, t bigint, OUT startable tid[], OUT parked integer
) LANGUAGE plpgsql AS $$
DECLARE
    in_full tid[];
BEGIN
    WITH met AS (
        SELECT j.ctid AS place, j.due, j.seq, dq.group_of(j.headers) AS grp FROM dq.job j
        WHERE j.ctid = ANY (places)),
    numbered AS (
        SELECT *, row_number() OVER (PARTITION BY grp ORDER BY due, seq) AS number FROM met),
    counted AS (
        SELECT *, max(CASE WHEN number = 1 THEN dq.room_in_group(f, grp, t) END) OVER (PARTITION BY grp) AS room
        FROM numbered),
    judged AS (SELECT *, grp IS NOT NULL AND number > room AS is_full FROM counted),
    sorted AS (
        SELECT place, is_full, count(*) FILTER (WHERE NOT is_full) OVER (ORDER BY due, seq) AS place_in_claim
        FROM judged)
    SELECT coalesce(array_agg(place) FILTER (WHERE NOT is_full AND place_in_claim <= most), '{}'),
            array_agg(place) FILTER (WHERE is_full)
        INTO startable, in_full FROM sorted;
    UPDATE dq.job
        SET state = -1, at = due, grp = dq.group_of(headers), losses = least(losses + state, 1000000000)
        WHERE ctid = ANY (in_full);
    GET DIAGNOSTICS parked = ROW_COUNT;
END $$;

-- Returns all parked jobs to their places. The caller holds the gate's lock.
CREATE OR REPLACE FUNCTION dq.unpark_all(queue_id integer, t bigint) RETURNS void
LANGUAGE plpgsql {planned} AS $$
DECLARE
    g dq.gate := dq.gate_of(queue_id);
    first_at bigint;
BEGIN
    WITH returned AS (
        UPDATE dq.job SET state = 0, grp = NULL WHERE q = queue_id AND state = -1 RETURNING at)
    SELECT min(at) INTO first_at FROM returned;
    IF first_at IS NOT NULL THEN
        g.parked := 0;
        PERFORM dq.change_gate(g), dq.announce_due(queue_id, first_at, t);
    END IF;
END $$;
