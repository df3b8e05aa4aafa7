//! Queues with limits: reads and writes their gates.

use dq_core::machine::{Gate, Room};
use dq_core::{Flow, OperateReport, Operation, QueueName, RateState, Result, Timestamp};
use rusqlite::params;

use crate::backend::SqliteBackend;
use crate::error::StoreResult;
use crate::reader::ReadTx;
use crate::task::{Access, Weight};
use crate::write_tx::WriteTx;

impl ReadTx<'_> {
    /// Returns `None` if the queue has had no limit.
    pub(crate) fn gate(self, queue_id: i64) -> StoreResult<Option<Gate>> {
        self.find(&self.statements.gate, [queue_id], |row| {
            let overriding: Option<String> = row.get(1)?;
            Ok(Gate {
                declared: read(&row.get::<_, String>(0)?),
                overriding: overriding.as_deref().map(read),
                rate: RateState(row.get(2)?),
                closed_until: row.get::<_, Option<i64>>(3)?.map(Timestamp::from_millis),
            })
        })
    }

    /// Returns how many jobs may start now.
    pub(crate) fn room(self, queue_id: i64, gate: &Gate) -> StoreResult<Room> {
        let is_counted = gate.flow().max_running.is_some();
        let running = if is_counted { self.running(queue_id)? } else { 0 };
        Ok(gate.room(running, self.now))
    }

    fn running(self, queue_id: i64) -> StoreResult<usize> {
        let held = [queue_id, self.now.as_millis()];
        let running: u32 = self.one(&self.statements.count_leases_of, held, |row| row.get(0))?;
        Ok(running as usize)
    }

    /// Returns whether a job may start now.
    pub(crate) fn has_room(self, queue_id: i64) -> StoreResult<bool> {
        Ok(match self.gate(queue_id)? {
            Some(gate) => matches!(self.room(queue_id, &gate)?, Room::Jobs(_)),
            None => true,
        })
    }

    /// Returns when a waiting job that is due at `due` may start; `None` if only an ended run makes
    /// room.
    pub(crate) fn opens_at(self, queue_id: i64, due: Timestamp) -> StoreResult<Option<Timestamp>> {
        let Some(gate) = self.gate(queue_id)? else { return Ok(Some(due)) };
        Ok(self.room(queue_id, &gate)?.opens_at(due, self.now))
    }
}

/// A row that another program has written wrongly stops its queue, and no other.
fn read(text: &str) -> Flow {
    serde_json::from_str(text).unwrap_or_else(|error| {
        tracing::warn!(%error, text, "the limits of a queue cannot be read, so it stands still");
        Flow::UNLIMITED.max_running(0)
    })
}

impl WriteTx<'_> {
    pub(crate) fn save_gate(&self, queue_id: i64, gate: &Gate) -> StoreResult<()> {
        let json = |flow: &Flow| serde_json::to_string(flow).expect("limits are valid JSON");
        let closed_until = gate.closed_until.map(Timestamp::as_millis);
        let (declared, overriding) = (json(&gate.declared), gate.overriding.as_ref().map(json));
        let values = params![queue_id, declared, overriding, gate.rate.0, closed_until];
        self.execute(&self.statements.save_gate, values)?;
        Ok(())
    }

    /// Closes the queue until this time.
    pub(crate) fn close_queue(&self, queue_id: i64, until: Timestamp) -> StoreResult<()> {
        let mut gate = self.gate(queue_id)?.unwrap_or_default();
        gate.close_until(until);
        self.save_gate(queue_id, &gate)
    }

    /// Opens a queue that a handler has closed; returns whether it was closed.
    pub(crate) fn open_queue(&self, queue_id: i64) -> StoreResult<bool> {
        let Some(gate) = self.gate(queue_id)? else { return Ok(false) };
        let was_closed = gate.closed_until.is_some_and(|until| until > self.now);
        if gate.closed_until.is_some() {
            self.save_gate(queue_id, &Gate { closed_until: None, ..gate })?;
        }
        Ok(was_closed)
    }

    /// Whether the queue may have been full before this transaction ended so many leases.
    pub(crate) fn was_full(&self, queue_id: i64, ended: usize) -> StoreResult<bool> {
        let is_counted = |gate: &Gate| gate.flow().max_running.is_some();
        let Some(gate) = self.gate(queue_id)?.filter(is_counted) else { return Ok(false) };
        Ok(gate.room(self.running(queue_id)? + ended, self.now) == Room::Full)
    }
}

impl SqliteBackend {
    /// Declares or overrides limits. Without a change, takes no write lock.
    pub(crate) async fn set_flow(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let queue = operation.queue().clone();
        let change = match operation {
            Operation::OverrideFlow { flow, .. } => Change::Override(flow),
            Operation::DeclareFlow { flow, .. } => Change::Declare(flow),
            _ => return Ok(OperateReport::default()),
        };
        let name = queue.clone();
        let unchanged = move |tx: ReadTx<'_>| {
            let gate = tx.find_queue(&name)?.map(|queue_id| tx.gate(queue_id)).transpose()?;
            Ok(change.applied(gate.flatten().unwrap_or_default()).is_none())
        };
        if self.read("limit", unchanged).await? {
            return Ok(OperateReport::default());
        }
        let name = queue.clone();
        let write = move |tx: &mut WriteTx<'_>| write_flow(tx, &name, change);
        let affected = self.writer.submit("limit", Access::Write, Weight::ONE, write).await?;
        self.shared.listeners.wake(&queue, self.shared.clock.now());
        Ok(OperateReport::new(affected))
    }
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Declare(Flow),
    Override(Option<Flow>),
}

impl Change {
    /// Returns the changed gate; `None` if it stays the same.
    fn applied(self, gate: Gate) -> Option<Gate> {
        let changed = match self {
            Self::Declare(declared) => Gate { declared, ..gate },
            Self::Override(overriding) => Gate { overriding, ..gate },
        };
        (changed != gate).then_some(changed)
    }
}

fn write_flow(tx: &mut WriteTx<'_>, queue: &QueueName, change: Change) -> StoreResult<u64> {
    let queue_id = tx.find_or_add_queue(queue)?;
    let before = tx.gate(queue_id)?.unwrap_or_default();
    let Some(gate) = change.applied(before) else { return Ok(0) };
    // Older versions would neither count running jobs nor return parked ones.
    tx.execute(&tx.statements.require_flow, [])?;
    tx.save_gate(queue_id, &gate)?;
    if gate.flow().group_max_running != before.flow().group_max_running {
        tx.unpark_all(queue_id)?;
    }
    tx.mark_changed(queue_id);
    Ok(1)
}
