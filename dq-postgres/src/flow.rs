//! Limits of queues, as `flow.sql` keeps them.

use dq_core::machine::Gate;
use dq_core::{Flow, QueueFlow, RateState, Result, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::store::Store;

impl Store {
    /// Declares or overrides limits.
    pub(crate) async fn limit(
        &self,
        queue: &str,
        overrides: bool,
        flow: Option<Flow>,
    ) -> Result<Vec<Row>> {
        let flow = flow.as_ref().map(write);
        let params =
            [(&queue as _, Type::TEXT), (&overrides as _, Type::BOOL), (&flow as _, Type::TEXT)];
        let sql = "SELECT dq.limit_queue($1, $2, $3::jsonb)::integer::bigint";
        self.change(sql, &params).await
    }
}

/// Adds the rate's numbers, because the server does not read its text.
fn write(flow: &Flow) -> String {
    let mut json = serde_json::to_value(flow).expect("limits are valid JSON");
    if let Some(rate) = flow.rate {
        json["interval"] = serde_json::json!(rate.interval().as_micros());
        json["burst"] = rate.max_burst().into();
    }
    json.to_string()
}

/// Reads a queue's limits, and whether one holds jobs back now.
pub(crate) fn read(row: &Row) -> std::result::Result<QueueFlow, tokio_postgres::Error> {
    let declared: Option<&str> = row.try_get("declared")?;
    let overriding: Option<&str> = row.try_get("overriding")?;
    let gate = Gate {
        declared: declared.map(limits).unwrap_or_default(),
        overriding: overriding.map(limits),
        rate: RateState(row.try_get("used")?),
        closed_until: row.try_get::<_, Option<i64>>("closed_until")?.map(Timestamp::from_millis),
    };
    Ok(gate.state(Timestamp::from_millis(row.try_get("t")?)))
}

/// Another program may have written a rate's text wrongly; its numbers are in force.
fn limits(json: &str) -> Flow {
    serde_json::from_str(json).unwrap_or_else(|error| {
        tracing::warn!(%error, json, "the limits of a queue cannot be shown");
        Flow::UNLIMITED
    })
}
