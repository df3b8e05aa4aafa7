//! Replays, removes and purges jobs; pauses, resumes and limits queues.

use dq_core::{OperateReport, Operation, Result};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::{unexpected, unsupported};
use crate::params;
use crate::store::Store;

/// Jobs per transaction of a purge, so that each takes some milliseconds.
const PURGE_STEP: i32 = 500;

/// Per call; callers repeat it while jobs remain.
const PURGE_STEPS: usize = 2;

impl Store {
    pub(crate) async fn run_operation(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let queue = operation.queue().as_str();
        if matches!(operation, Operation::Remove { .. } | Operation::Purge { .. }) {
            self.mark_ended(operation.queue());
        }
        let uuids = |jobs: &[dq_core::JobId]| -> Vec<Uuid> {
            jobs.iter().map(|job| params::uuid(*job)).collect()
        };
        let rows = match operation {
            Operation::Replay { jobs, due, .. } => {
                let (ids, (time, is_delay)) = (uuids(jobs), params::due(due));
                self.change(
                    "SELECT dq.replay($1, $2, $3, $4)",
                    &[
                        (&queue, Type::TEXT),
                        (&ids, Type::UUID_ARRAY),
                        (&time, Type::INT8),
                        (&is_delay, Type::BOOL),
                    ],
                )
                .await?
            }
            Operation::Remove { jobs, .. } => {
                let ids = uuids(jobs);
                let params = [(&queue as _, Type::TEXT), (&ids as _, Type::UUID_ARRAY)];
                self.change("SELECT dq.remove($1, $2)", &params).await?
            }
            Operation::Pause { .. } | Operation::Resume { .. } => {
                let pauses = matches!(operation, Operation::Pause { .. });
                let params = [(&queue as _, Type::TEXT), (&pauses as _, Type::BOOL)];
                self.change("SELECT dq.set_paused($1, $2)::integer::bigint", &params).await?
            }
            Operation::DeclareFlow { flow, .. } => self.limit(queue, false, Some(flow)).await?,
            Operation::OverrideFlow { flow, .. } => self.limit(queue, true, flow).await?,
            Operation::Purge { .. } => return self.purge(queue).await,
            operation => return Err(unsupported(&operation)),
        };
        Ok(OperateReport::new(affected(&rows)?))
    }

    async fn purge(&self, queue: &str) -> Result<OperateReport> {
        let mut report = OperateReport::default();
        for _step in 0..PURGE_STEPS {
            let params = [(&queue as _, Type::TEXT), (&PURGE_STEP as _, Type::INT4)];
            let rows = self.change("SELECT * FROM dq.purge($1, $2)", &params).await?;
            report.affected += affected(&rows)?;
            report.more = rows[0].try_get(1).map_err(|_| unexpected())?;
            if !report.more {
                break;
            }
        }
        Ok(report)
    }
}

fn affected(rows: &[Row]) -> Result<u64> {
    let affected = rows.first().and_then(|row| row.try_get(0).ok());
    affected.map(i64::unsigned_abs).ok_or_else(unexpected)
}
