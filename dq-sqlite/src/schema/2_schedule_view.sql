-- Format 2: scheduling in plain SQL, for whoever has a transaction open in this file and speaks
-- another driver or language. The view's name carries the version of that promise.

CREATE VIEW {p}schedule_v1 (queue, id, key, due, payload, headers, max_attempts) AS
    SELECT queue.name, job.id, job.key, job.due, job.payload, job.headers, job.max_attempts
    FROM {p}job AS job JOIN {p}queue AS queue ON queue.q = job.q;

-- The guards are NOT EXISTS and not OR IGNORE, because a conflict clause of the caller's INSERT
-- would take the place of one in here.
CREATE TRIGGER {p}schedule_v1_insert INSTEAD OF INSERT ON {p}schedule_v1
BEGIN
    SELECT RAISE(ABORT, 'dq: queue must be text of 1 to 128 bytes')
        WHERE typeof(NEW.queue) <> 'text'
           OR length(CAST(NEW.queue AS BLOB)) NOT BETWEEN 1 AND 128;
    SELECT RAISE(ABORT, 'dq: id must be a blob of 16 bytes')
        WHERE typeof(NEW.id) <> 'blob' OR length(NEW.id) <> 16;
    SELECT RAISE(ABORT, 'dq: key must be null or text of 1 to 255 bytes')
        WHERE NEW.key IS NOT NULL
          AND (typeof(NEW.key) <> 'text'
               OR length(CAST(NEW.key AS BLOB)) NOT BETWEEN 1 AND 255);
    SELECT RAISE(ABORT, 'dq: due must be an integer of Unix milliseconds before the year 10000')
        WHERE typeof(NEW.due) <> 'integer' OR NEW.due NOT BETWEEN 0 AND 253402300799999;
    SELECT RAISE(ABORT, 'dq: payload must be a blob or text')
        WHERE typeof(NEW.payload) NOT IN ('blob', 'text');
    SELECT RAISE(ABORT, 'dq: headers must be null or the text of a JSON object')
        WHERE NEW.headers IS NOT NULL AND typeof(NEW.headers) <> 'text';
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
