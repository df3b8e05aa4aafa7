//! Extends leases.

use dq_core::{Lease, Renewal, Renewed};
use rusqlite::params;

use crate::error::StoreResult;
use crate::write_tx::WriteTx;

pub(crate) fn renew(tx: &mut WriteTx<'_>, renewal: &Renewal) -> StoreResult<Renewed> {
    let Some(seq) = find_leased_seq(tx, &renewal.lease)? else {
        return Ok(Renewed::LostLease);
    };
    let until = tx.now + renewal.lease_for;
    // The current time. The transaction also stores it, so that a later one sees a clock set back.
    let granted = tx.grant();
    tx.execute(&tx.statements.extend_lease, [seq, until.as_millis(), granted])?;
    Ok(Renewed::Until(until))
}

fn find_leased_seq(tx: &mut WriteTx<'_>, lease: &Lease) -> StoreResult<Option<i64>> {
    let Some(queue_id) = tx.find_queue(&lease.queue)? else {
        return Ok(None);
    };
    let key = params![lease.job.to_bytes(), tx.now.as_millis()];
    let found: Option<(i64, i64, i64)> =
        tx.find(&tx.statements.lease_of_job, key, |row| row.try_into())?;
    Ok(found
        .filter(|(_, lease_queue, token)| {
            *lease_queue == queue_id && token.unsigned_abs() == lease.token.0
        })
        .map(|(seq, ..)| seq))
}
