-- Groups: at most `group_max_running` jobs of each run at once.
--
-- A claim that meets a due job of a full group parks it, so that later claims do not meet it. While jobs are
-- parked, a note says when a lease of a group ends, or a waiting job ends or moves, and the next claim
-- returns the group's first parked job. So each parked job is later than as many of its group's other waiting
-- jobs as may start. Only claims park and return jobs, under the gate's lock: they see each other's work, and a
-- settlement waits for a claim only while that joins the line, whatever its transaction's isolation.
--
-- A returned job looks like an expired lease, because claims find these from their bounds on, however
-- early they were due. Its `losses` are one less, because none was lost.

-- The group in a job's headers, as it is written there. The regular expression takes ten times as long as the
-- rest; only headers with escapes, or of other programs, need it.
CREATE OR REPLACE FUNCTION dq.group_of(headers text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN headers LIKE '%"dq-group"%' THEN left(coalesce(
        CASE WHEN strpos(headers, '\') = 0
            THEN nullif(split_part(split_part(headers, '"dq-group":', 2), '"', 2), '') END,
        nullif(substring(headers FROM '[{,]\s*"dq-group"\s*:\s*"((?:[^"\\]|\\.)*)"'), '')), 500) END
$$;

-- To call before a waiting job ends or moves.
CREATE OR REPLACE FUNCTION dq.leave_group(j dq.job) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF j.state IN (0, 1) AND dq.group_of(j.headers) IS NOT NULL THEN
        INSERT INTO dq.note (q, at, grp) SELECT q, dq.now_ms(), dq.group_of(j.headers)
            FROM dq.flow WHERE q = j.q AND group_max_running IS NOT NULL;
    END IF;
END $$;

-- Returns up to `most` parked jobs of a group, as far as it has room.
CREATE OR REPLACE FUNCTION dq.return_first(f dq.flow, group_name text, most bigint, t bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    returned bigint;
BEGIN
    IF f.group_max_running IS NOT NULL THEN
        most := least(most, f.group_max_running - (SELECT count(*) FROM (
            SELECT FROM dq.job WHERE q = f.q AND state = 1 AND grp = group_name AND at > t
            LIMIT f.group_max_running) AS running));
    END IF;
    UPDATE dq.job SET state = 1, at = t, grp = NULL, losses = losses - 1 WHERE ctid = ANY (ARRAY(
        SELECT j.ctid FROM dq.job j
        WHERE j.q = f.q AND j.state = -1 AND j.grp = group_name ORDER BY j.at, j.seq
        LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS returned = ROW_COUNT;
    IF returned < most AND EXISTS (
        SELECT FROM dq.job j WHERE j.q = f.q AND j.state = -1 AND j.grp = group_name)
    THEN
        -- Somebody has locked it. The next walk tries again.
        INSERT INTO dq.note (q, at, grp) VALUES (f.q, 0, group_name);
    END IF;
    RETURN returned;
END $$;

-- Goes along up to 100 groups with parked jobs, and returns a job of each that has room: no note tells of room
-- that another program has made. The next walk begins there at `walk_at`, in a second or later: in at least 50
-- times as long as this one took, because under an old snapshot it reads removed entries.
--
-- A settlement that began before the first job was parked leaves no note. So walks begin sooner until none is
-- under way; then `walk_at` is the negative time. After that, and after a change of limits, it is 0: each claim
-- goes on, and returns up to 1,000 jobs, until the walk has come to the end.
CREATE OR REPLACE FUNCTION dq.walk_groups(f dq.flow, g dq.gate, t bigint) RETURNS dq.gate LANGUAGE plpgsql AS $$
DECLARE
    is_whole boolean := g.walk = '';
    returns_all boolean := g.walk_at = 0 OR f.group_max_running IS NULL;
    begun_at bigint := dq.now_ms();
    group_name text;
    returned bigint := 0;
    ended_at bigint;
    pause bigint;
BEGIN
    FOR number IN 1..100 LOOP
        group_name := (SELECT min(j.grp) FROM dq.job j WHERE j.q = f.q AND j.state = -1 AND j.grp > g.walk);
        IF group_name IS NULL THEN
            IF is_whole AND number = 1 THEN
                g.parked := 0;
            END IF;
            g.walk := '';
            g.walk_at := CASE g.walk_at WHEN 0 THEN 1 ELSE g.walk_at END;
            EXIT;
        END IF;
        returned := returned
            + dq.return_first(f, group_name, CASE WHEN returns_all THEN 1000 - returned ELSE 1 END, t);
        EXIT WHEN returned >= 1000;
        g.walk := group_name;
    END LOOP;
    g.parked := g.parked - returned;
    IF g.walk_at <> 0 THEN
        ended_at := dq.now_ms();
        pause := 50 * (ended_at - begun_at);
        g.walk_at := CASE WHEN g.walk_at < 0 THEN -(ended_at + greatest(10, pause))
            ELSE ended_at + greatest(1000, pause) END;
    END IF;
    RETURN g;
END $$;

-- Reads up to 1,000 notes, and returns parked jobs of groups with room. No lease expires before
-- `from_expired`. Says whether workers other than the claimer were called just now, and takes them out of the
-- line: they join again if they find no job. One that does not come for a second may have no free slot.
CREATE OR REPLACE FUNCTION dq.read_notes(
    f dq.flow, INOUT g dq.gate, claimer text, from_expired bigint, t bigint, OUT is_called boolean
) LANGUAGE plpgsql AS $$
DECLARE
    walks boolean;
    settling bigint := dq.lock_key('dq.flow', f.q);
    notes integer;
    groups text[];
    called text[];
    expired tid[];
    expired_groups text[];
BEGIN
    -- One expression, so that no cancelled claim keeps the lock.
    IF g.parked > 0 AND g.walk_at < 0
        AND (CASE WHEN pg_try_advisory_lock(settling) THEN pg_advisory_unlock(settling) END)
    THEN
        g.walk := '';
        g.walk_at := 0;
    END IF;
    walks := g.parked > 0 AND abs(g.walk_at) <= t;
    -- Before the leases are counted: whatever ends from now on comes with a new note. A walk also reads the
    -- late ones.
    WITH read AS MATERIALIZED (
        SELECT n.ctid AS place, n.grp, n.worker, n.worker <> claimer AND n.at > t - 1000 AS is_coming
        FROM dq.note n WHERE n.q = f.q AND n.at >= CASE WHEN walks THEN 0 ELSE g.read_to END
        ORDER BY n.at, n.n LIMIT 1000),
    deleted AS (DELETE FROM dq.note WHERE ctid = ANY (ARRAY(SELECT place FROM read WHERE is_coming IS NOT TRUE)))
    SELECT count(*), coalesce(array_agg(grp) FILTER (WHERE grp IS NOT NULL), '{}'),
            coalesce(array_agg(worker) FILTER (WHERE is_coming), '{}')
        INTO notes, groups, called FROM read;
    IF notes BETWEEN 1 AND 999 AND g.read_to < t - 1000 THEN
        -- Transactions under way may have earlier notes.
        g.read_to := t - 500;
    END IF;
    is_called := called <> '{}';
    IF g.line && called THEN
        SELECT coalesce(array_agg(worker ORDER BY position), '{}'), coalesce(array_agg(at ORDER BY position), '{}')
            INTO g.line, g.seen
            FROM unnest(g.line, g.seen) WITH ORDINALITY AS waiting (worker, at, position)
            WHERE worker <> ALL (called);
    END IF;
    IF f.group_max_running IS NOT NULL THEN
        SELECT array_agg(place), array_agg(grp) INTO expired, expired_groups FROM (
            SELECT j.ctid AS place, j.grp FROM dq.job j
            WHERE j.q = f.q AND j.state = 1 AND j.at <= t AND j.at >= from_expired AND j.grp IS NOT NULL
            ORDER BY j.at LIMIT 1000 FOR UPDATE SKIP LOCKED) AS lease;
        IF expired IS NOT NULL THEN
            UPDATE dq.job SET grp = NULL WHERE ctid = ANY (expired);
            groups := groups || expired_groups;
        END IF;
        -- Only claims park, and count it under this lock.
        IF g.parked > 0 THEN
            g.parked := g.parked - (
                SELECT coalesce(sum(dq.return_first(f, grp, ends, t)), 0)
                FROM (SELECT grp, count(*) AS ends FROM unnest(groups) AS grp GROUP BY grp) AS room);
        END IF;
    END IF;
    IF walks THEN
        g := dq.walk_groups(f, g, t);
    END IF;
END $$;

-- Of jobs that a claim has locked, returns up to `most` whose groups have room, and parks those of full
-- groups. Beyond `to_start`, ends at the first job with which its group would use more than half of its limit.
CREATE OR REPLACE FUNCTION dq.admit(
    f dq.flow, places tid[], most integer, to_start integer, t bigint,
    OUT admitted tid[], OUT parked integer
) LANGUAGE plpgsql AS $$
DECLARE
    in_full tid[];
BEGIN
    WITH met AS (
        SELECT place, due, seq, grp, row_number() OVER (PARTITION BY grp ORDER BY due, seq) AS number_met
        FROM (
            SELECT j.ctid AS place, j.due, j.seq, dq.group_of(j.headers) AS grp FROM dq.job j
            WHERE j.ctid = ANY (places)) AS job),
    counted AS (
        SELECT *, CASE WHEN number_met = 1 AND grp IS NOT NULL THEN (
            SELECT count(*) FROM dq.job r
            WHERE r.q = f.q AND r.state = 1 AND r.grp = met.grp AND r.at > t) END AS running
        FROM met),
    -- The group's running jobs if this one starts.
    numbered AS (
        SELECT *, number_met + first_value(running) OVER (PARTITION BY grp ORDER BY due, seq) AS number
        FROM counted),
    filled AS (
        SELECT *, coalesce(number > f.group_max_running, false) AS is_full FROM numbered),
    summed AS (
        SELECT *, count(*) FILTER (WHERE NOT is_full) OVER (ORDER BY due, seq) AS admitted_so_far FROM filled),
    judged AS (
        SELECT *, 0 = count(*) FILTER (
            WHERE NOT is_full AND admitted_so_far > to_start AND 2 * number > f.group_max_running
        ) OVER (ORDER BY due, seq) AS is_reached FROM summed)
    SELECT coalesce(array_agg(place) FILTER (WHERE NOT is_full AND admitted_so_far <= most), '{}'),
            array_agg(place) FILTER (WHERE is_full)
        INTO admitted, in_full FROM judged WHERE is_reached;
    UPDATE dq.job
        SET state = -1, at = due, grp = dq.group_of(headers), losses = least(losses + state, 1000000000)
        WHERE ctid = ANY (in_full);
    GET DIAGNOSTICS parked = ROW_COUNT;
END $$;
