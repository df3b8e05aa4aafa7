//! Groups: a claim parks due jobs of full groups, and an ended run returns the first one. See
//! `machine/groups.rs` in dq-core for why no job is missed.

use dq_core::Timestamp;
use rusqlite::params;

use crate::claim_plan::earlier;
use crate::error::StoreResult;
use crate::reader::ReadTx;
use crate::write_tx::WriteTx;

impl ReadTx<'_> {
    /// Counts the running jobs of a group.
    pub(crate) fn running_of_group(self, queue_id: i64, group: &str) -> StoreResult<usize> {
        let held = params![queue_id, group, self.now.as_millis()];
        let running: u32 =
            self.one(&self.statements.count_leases_of_group, held, |row| row.get(0))?;
        Ok(running as usize)
    }

    /// Returns when the first waiting job is due, parked or not.
    pub(crate) fn first_waiting(self, queue_id: i64) -> StoreResult<Option<Timestamp>> {
        let parked = self.find(&self.statements.first_parked, [queue_id], |row| row.get(0))?;
        Ok(earlier(self.earliest_due(queue_id)?, parked.map(Timestamp::from_millis)))
    }
}

impl WriteTx<'_> {
    pub(crate) fn park(&self, queue_id: i64, group: &str, at: i64, seq: i64) -> StoreResult<()> {
        self.execute(&self.statements.park, params![queue_id, group, at, seq])?;
        Ok(())
    }

    /// Returns the first parked job of a group to the due jobs, after a run has ended or a waiting
    /// job has left.
    pub(crate) fn unpark_first(&mut self, queue_id: i64, group: &str) -> StoreResult<()> {
        let of_group = params![queue_id, group];
        let first: Option<(i64, i64)> =
            self.find(&self.statements.first_parked_of_group, of_group, |row| row.try_into())?;
        if let Some((at, seq)) = first {
            self.execute(&self.statements.remove_parked, params![queue_id, group, at, seq])?;
            let at = Timestamp::from_millis(at);
            // Another program may have returned it.
            self.remove_due(queue_id, at.as_millis(), seq)?;
            self.add_due(queue_id, at, seq)?;
        }
        Ok(())
    }

    /// Returns all parked jobs of a queue to the due jobs.
    pub(crate) fn unpark_all(&mut self, queue_id: i64) -> StoreResult<()> {
        if self.execute(&self.statements.return_parked, [queue_id])? > 0 {
            self.execute(&self.statements.remove_all_parked, [queue_id])?;
            self.wake_if_waiting(queue_id);
        }
        Ok(())
    }
}
