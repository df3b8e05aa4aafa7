//! Stats, browse, get and forecast.

use dq_core::{
    BrowseParams, Cursor, JobRef, JobState, JobView, Order, Page, QueueName, QueueStats, Result,
    Target, Timestamp, Totals,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::connect::Param;
use crate::error::{Effect, unexpected, unsupported};
use crate::flow;
use crate::params;
use crate::row;
use crate::store::Store;

/// `$1` names the queues; null means all. Adds the rows of `tally` to the queues' totals.
const STATS: &str = "
    WITH clock AS MATERIALIZED (SELECT dq.now_ms() AS t),
    newest AS (SELECT q, ending, sum(jobs)::bigint AS jobs FROM dq.tally GROUP BY q, ending)
    SELECT name, paused,
        (SELECT count(*) FROM dq.job WHERE q = queue.q AND state IN (-1, 0) AND at > t)
            + (SELECT count(*) FROM dq.job WHERE q = queue.q AND state = 1 AND at <= t AND due > t)
            AS scheduled,
        (SELECT count(*) FROM dq.job WHERE q = queue.q AND state IN (-1, 0) AND at <= t)
            + (SELECT count(*) FROM dq.job WHERE q = queue.q AND state = 1 AND at <= t AND due <= t)
            AS ready,
        (SELECT count(*) FROM dq.job WHERE q = queue.q AND state = 1 AND at > t) AS running,
        (SELECT count(*) FROM dq.job WHERE q = queue.q AND state = 2) AS dead,
        least((SELECT min(at) FROM dq.job WHERE q = queue.q AND state = 0),
            (SELECT min(at) FROM dq.job WHERE q = queue.q AND state = -1),
            (SELECT min(due) FROM dq.job WHERE q = queue.q AND state = 1 AND at <= t)) AS next_due,
        done + coalesce((SELECT jobs FROM newest n WHERE n.q = queue.q AND ending = 'done'), 0)
            AS done,
        skipped + coalesce((SELECT jobs FROM newest n WHERE n.q = queue.q AND ending = 'skipped'), 0)
            AS skipped,
        cancelled
            + coalesce((SELECT jobs FROM newest n WHERE n.q = queue.q AND ending = 'cancelled'), 0)
            AS cancelled,
        replaced
            + coalesce((SELECT jobs FROM newest n WHERE n.q = queue.q AND ending = 'replaced'), 0)
            AS replaced,
        removed + coalesce((SELECT jobs FROM newest n WHERE n.q = queue.q AND ending = 'removed'), 0)
            AS removed,
        t, declared::text, overriding::text, closed_until,
        coalesce((SELECT used FROM dq.gate g WHERE g.q = queue.q ORDER BY n DESC LIMIT 1), 0) AS used
    FROM clock, dq.queue LEFT JOIN dq.flow USING (q) WHERE $1::text[] IS NULL OR name = ANY ($1) ORDER BY name";

/// Columns of `dq.job` for `row::view`, but the payload.
const VIEW: &str = "id, seq, at, due, first_due, created, state, attempts, deliveries, losses, \
    max_attempts, key, headers, worker, since, last_error, kind, message";

impl Store {
    pub(crate) async fn count_jobs(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let names: Vec<&str> = queues.iter().map(QueueName::as_str).collect();
        let names = (!names.is_empty()).then_some(names);
        let rows = self.query(Effect::Scans, STATS, &[(&names, Type::TEXT_ARRAY)]).await?;
        let found = rows.iter().map(|row| stats(row).map_err(|_| unexpected()));
        let found: Vec<QueueStats> = found.collect::<Result<_>>()?;
        if names.is_none() {
            return Ok(found);
        }
        let of = |queue: &QueueName| {
            let stats = found.iter().find(|stats| stats.queue == *queue).cloned();
            stats.unwrap_or_else(|| {
                let mut empty = QueueStats::empty(queue.clone());
                empty.totals = Some(Totals::default());
                empty
            })
        };
        Ok(queues.iter().map(of).collect())
    }

    /// Lists jobs by the time of their state: the due time, lease expiry, death or end.
    pub(crate) async fn list_jobs(&self, params: &BrowseParams<'_>) -> Result<Page> {
        let (table, time) = match params.state {
            JobState::Scheduled => (waiting(">"), "due"),
            JobState::Ready => (waiting("<="), "due"),
            JobState::Running => ("SELECT * FROM of_queue WHERE state = 1 AND at > t".into(), "at"),
            JobState::Dead => ("SELECT * FROM of_queue WHERE state = 2".into(), "at"),
            JobState::Ended => (
                "SELECT * FROM of_queue WHERE state = 3 AND at >= t - age AND (at, seq) > (
                    SELECT coalesce(max(at), -1), coalesce(max(seq), -1) FROM (
                        SELECT at, seq FROM of_queue WHERE state = 3 ORDER BY at DESC, seq DESC
                        OFFSET (SELECT max FROM named) LIMIT 1) AS first_beyond)"
                    .into(),
                "at",
            ),
            state => return Err(unsupported(&state)),
        };
        let (comparison, direction, start) = match params.order {
            Order::Ascending => (">", "", (i64::MIN, i64::MIN)),
            Order::Descending => ("<", "DESC", (i64::MAX, i64::MAX)),
        };
        let payload = if params.payloads { "payload" } else { "NULL::bytea AS payload" };
        let sql = format!(
            "WITH clock AS MATERIALIZED (SELECT dq.now_ms() AS t),
            named AS MATERIALIZED (
                SELECT * FROM dq.history_limit WHERE q = (SELECT q FROM dq.queue WHERE name = $1)),
            of_queue AS NOT MATERIALIZED (
                SELECT job.*, t, age FROM clock, named JOIN dq.job USING (q))
            SELECT {VIEW}, {payload}, t, {time} AS listed_at FROM ({table}) AS listed
            WHERE ({time}, seq) {comparison} ($2, $3)
            ORDER BY {time} {direction}, seq {direction} LIMIT $4",
        );
        let after = params.after.map_or(start, |cursor| {
            (cursor.at.as_millis(), i64::try_from(cursor.seq).unwrap_or(i64::MAX))
        });
        let most = i64::try_from(params.limit).unwrap_or(i64::MAX - 1).saturating_add(1);
        let rows = self
            .query(
                Effect::Scans,
                &sql,
                &[
                    (&params.queue.as_str(), Type::TEXT),
                    (&after.0, Type::INT8),
                    (&after.1, Type::INT8),
                    (&most, Type::INT8),
                ],
            )
            .await?;
        let shown = rows.len().min(params.limit);
        let next = (rows.len() > params.limit).then(|| cursor(&rows[shown - 1])).transpose();
        let views = rows[..shown].iter().map(|row| read_view(row, params.queue));
        let views: std::result::Result<Vec<JobView>, _> = views.collect();
        match (views, next) {
            (Ok(views), Ok(next)) => Ok(Page::new(views, next)),
            _ => Err(unexpected()),
        }
    }

    pub(crate) async fn find_job(&self, job: &JobRef) -> Result<Option<JobView>> {
        let (id, key) = match &job.target {
            Target::Id(id) => (Some(params::uuid(*id)), None),
            Target::Key(key) => (None, Some(key.as_str())),
        };
        // An ended job is found within the history's limit only.
        let sql = format!(
            "WITH clock AS MATERIALIZED (SELECT dq.now_ms() AS t),
            named AS MATERIALIZED (SELECT q FROM dq.queue WHERE name = $1)
            SELECT {VIEW}, payload, t FROM clock, named JOIN dq.job USING (q)
            WHERE ((id = $2 AND state < 4) OR ($2 IS NULL AND key = $3 AND state < 2))
                AND (state < 3 OR dq.in_history(q, at, seq, t))",
        );
        let params: [Param<'_>; 3] =
            [(&job.queue.as_str(), Type::TEXT), (&id, Type::UUID), (&key, Type::TEXT)];
        let rows = self.read(&sql, &params).await?;
        let view = rows.first().map(|row| read_view(row, &job.queue));
        view.transpose().map_err(|_| unexpected())
    }

    pub(crate) async fn count_due(
        &self,
        queue: &QueueName,
        edges: &[Timestamp],
    ) -> Result<Vec<u64>> {
        let (from, to): (Vec<i64>, Vec<i64>) =
            edges.windows(2).map(|pair| (pair[0].as_millis(), pair[1].as_millis())).unzip();
        let rows = self
            .query(
                Effect::Scans,
                "WITH clock AS MATERIALIZED (SELECT dq.now_ms() AS t),
                named AS MATERIALIZED (SELECT q FROM dq.queue WHERE name = $1)
                SELECT
                    (SELECT count(*) FROM dq.job, named WHERE job.q = named.q AND state IN (-1, 0)
                        AND at >= first AND at < last)
                    + (SELECT count(*) FROM dq.job, named WHERE job.q = named.q AND state = 1
                        AND at <= t AND due >= first AND due < last)
                FROM clock, unnest($2, $3) WITH ORDINALITY AS edge (first, last, number)
                ORDER BY number",
                &[
                    (&queue.as_str(), Type::TEXT),
                    (&from, Type::INT8_ARRAY),
                    (&to, Type::INT8_ARRAY),
                ],
            )
            .await?;
        let counts = rows.iter().map(|row| unsigned(row, 0).map_err(|_| unexpected()));
        counts.collect()
    }
}

/// Waiting jobs due before or after now, including jobs with an expired lease.
fn waiting(comparison: &str) -> String {
    format!(
        "SELECT * FROM of_queue WHERE state = 0 AND at {comparison} t
        UNION ALL SELECT * FROM of_queue WHERE state = -1 AND at {comparison} t
        UNION ALL SELECT * FROM of_queue WHERE state = 1 AND at <= t AND due {comparison} t"
    )
}

fn read_view(row: &Row, queue: &QueueName) -> std::result::Result<JobView, tokio_postgres::Error> {
    row::view(row, queue, row.try_get("t")?)
}

fn cursor(row: &Row) -> std::result::Result<Cursor, tokio_postgres::Error> {
    let seq: i64 = row.try_get("seq")?;
    let at = Timestamp::from_millis(row.try_get("listed_at")?);
    Ok(Cursor { at, seq: seq.unsigned_abs().into() })
}

fn stats(row: &Row) -> std::result::Result<QueueStats, Box<dyn std::error::Error>> {
    let mut stats = QueueStats::empty(QueueName::new(row.try_get::<_, &str>("name")?)?);
    stats.scheduled = unsigned(row, "scheduled")?;
    stats.ready = unsigned(row, "ready")?;
    stats.running = unsigned(row, "running")?;
    stats.dead = unsigned(row, "dead")?;
    stats.paused = row.try_get("paused")?;
    stats.next_due = row.try_get::<_, Option<i64>>("next_due")?.map(Timestamp::from_millis);
    let mut totals = Totals::default();
    totals.done = unsigned(row, "done")?;
    totals.skipped = unsigned(row, "skipped")?;
    totals.cancelled = unsigned(row, "cancelled")?;
    totals.replaced = unsigned(row, "replaced")?;
    totals.removed = unsigned(row, "removed")?;
    // Not counted by itself: that would cost each producer an insert.
    totals.created = stats.stored() + totals.departed();
    stats.totals = Some(totals);
    stats.flow = flow::read(row)?;
    Ok(stats)
}

/// PostgreSQL has no unsigned integers, but counts are never negative.
fn unsigned<I: tokio_postgres::row::RowIndex + std::fmt::Display>(
    row: &Row,
    column: I,
) -> std::result::Result<u64, tokio_postgres::Error> {
    row.try_get(column).map(i64::unsigned_abs)
}
