-- Format 2: scheduling in plain SQL, for other drivers and languages. The view's name contains the
-- version of this public interface.

CREATE VIEW {p}schedule_v1 (queue, id, key, due, payload, headers, max_attempts) AS
    SELECT queue.name, job.id, job.key, job.due, job.payload, job.headers, job.max_attempts
    FROM {p}job AS job JOIN {p}queue AS queue ON queue.q = job.q;

-- Duplicates are excluded by NOT EXISTS and not by OR IGNORE, because a conflict clause of the
-- caller's INSERT would override one in the trigger.
--
-- SQLite stores any bytes as text, but no API call could name a queue or key that is not UTF-8. So
-- names beyond ASCII are checked character by character: decoding and encoding a character yields
-- the same bytes only if they are valid UTF-8. (U+FFFE and U+FFFF, which are noncharacters, fail
-- too.) Most functions ignore what follows a NUL, but instr does not. Headers are not checked this
-- way: they may be long, and a job whose headers cannot be read is quarantined when it is claimed.
CREATE TRIGGER {p}schedule_v1_insert INSTEAD OF INSERT ON {p}schedule_v1
BEGIN
    SELECT RAISE(ABORT, 'dq: queue must be text of 1 to 128 bytes')
        WHERE typeof(NEW.queue) <> 'text'
           OR length(CAST(NEW.queue AS BLOB)) NOT BETWEEN 1 AND 128;
    SELECT RAISE(ABORT, 'dq: queue must not hold control characters')
        WHERE instr(NEW.queue, char(0)) > 0
           OR NEW.queue GLOB
              '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*';
    SELECT RAISE(ABORT, 'dq: queue must be valid UTF-8')
        WHERE NEW.queue GLOB '*[^ -~]*'
          AND EXISTS (
              WITH RECURSIVE rest (text) AS (
                  SELECT NEW.queue
                  UNION ALL SELECT substr(text, 2) FROM rest WHERE length(text) > 1)
              SELECT 1 FROM rest
              WHERE CAST(char(unicode(text)) AS BLOB) <> CAST(substr(text, 1, 1) AS BLOB));
    SELECT RAISE(ABORT, 'dq: id must be a blob of 16 bytes')
        WHERE typeof(NEW.id) <> 'blob' OR length(NEW.id) <> 16;
    SELECT RAISE(ABORT, 'dq: key must be null or text of 1 to 255 bytes')
        WHERE NEW.key IS NOT NULL
          AND (typeof(NEW.key) <> 'text'
               OR length(CAST(NEW.key AS BLOB)) NOT BETWEEN 1 AND 255);
    SELECT RAISE(ABORT, 'dq: key must not hold control characters')
        WHERE instr(NEW.key, char(0)) > 0
           OR NEW.key GLOB
              '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*';
    SELECT RAISE(ABORT, 'dq: key must be valid UTF-8')
        WHERE NEW.key GLOB '*[^ -~]*'
          AND EXISTS (
              WITH RECURSIVE rest (text) AS (
                  SELECT NEW.key
                  UNION ALL SELECT substr(text, 2) FROM rest WHERE length(text) > 1)
              SELECT 1 FROM rest
              WHERE CAST(char(unicode(text)) AS BLOB) <> CAST(substr(text, 1, 1) AS BLOB));
    SELECT RAISE(ABORT, 'dq: due must be an integer of Unix milliseconds before the year 10000')
        WHERE typeof(NEW.due) <> 'integer' OR NEW.due NOT BETWEEN 0 AND 253402300799999;
    SELECT RAISE(ABORT, 'dq: payload must be a blob or text')
        WHERE typeof(NEW.payload) NOT IN ('blob', 'text');
    -- Separate checks, in this order: the JSON functions fail on text that is not JSON.
    SELECT RAISE(ABORT, 'dq: headers must be null or the text of a JSON object')
        WHERE NEW.headers IS NOT NULL
          AND (typeof(NEW.headers) <> 'text'
               OR instr(NEW.headers, char(0)) > 0
               OR NOT json_valid(NEW.headers));
    SELECT RAISE(ABORT, 'dq: headers must be a JSON object')
        WHERE json_type(NEW.headers) <> 'object';
    SELECT RAISE(ABORT, 'dq: headers must have values that are text')
        WHERE EXISTS (SELECT 1 FROM json_each(NEW.headers) WHERE type <> 'text');
    SELECT RAISE(ABORT, 'dq: max_attempts must be null or an integer from 1 to 4294967295')
        WHERE NEW.max_attempts IS NOT NULL
          AND (typeof(NEW.max_attempts) <> 'integer'
               OR NEW.max_attempts NOT BETWEEN 1 AND 4294967295);

    INSERT INTO {p}queue (name)
        SELECT NEW.queue WHERE NOT EXISTS (SELECT 1 FROM {p}queue WHERE name = NEW.queue);
    INSERT INTO {p}job (seq, id, q, key, due, created, max_attempts, headers, payload)
        SELECT meta.seq + 1, NEW.id, queue.q, NEW.key, NEW.due,
               CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER),
               NEW.max_attempts, NEW.headers, CAST(NEW.payload AS BLOB)
        FROM {p}meta AS meta, {p}queue AS queue
        WHERE queue.name = NEW.queue
          AND NOT EXISTS (SELECT 1 FROM {p}job WHERE id = NEW.id)
          AND NOT EXISTS (SELECT 1 FROM {p}dead WHERE id = NEW.id)
          AND NOT EXISTS (SELECT 1 FROM {p}job AS other
                          WHERE other.q = queue.q AND other.key = NEW.key);
    -- From here on a job with the number after the counter's is the one just stored, if it was.
    INSERT INTO {p}due (q, at, seq)
        SELECT q, due, seq FROM {p}job WHERE seq = (SELECT seq + 1 FROM {p}meta);
    UPDATE {p}queue SET created = created + 1
        WHERE q = (SELECT q FROM {p}job WHERE seq = (SELECT seq + 1 FROM {p}meta));
    UPDATE {p}meta SET seq = seq + 1
        WHERE EXISTS (SELECT 1 FROM {p}job WHERE seq = (SELECT seq + 1 FROM {p}meta));
END;
