//! Runner announcements.

use bytes::Bytes;
use dq_core::{Announced, Announcement, Timestamp};
use rusqlite::params;

use crate::error::StoreResult;
use crate::reader::ReadTx;
use crate::write_tx::WriteTx;

/// Also drops expired announcements.
pub(crate) fn announce(tx: &mut WriteTx<'_>, announcement: &Announcement) -> StoreResult<()> {
    let Announcement { name, info, ttl, .. } = announcement;
    tx.execute(&tx.statements.remove_runners, params![tx.now.as_millis(), name])?;
    if !ttl.is_zero() {
        let (at, until) = (tx.now.as_millis(), (tx.now + *ttl).as_millis());
        tx.execute(&tx.statements.add_runner, params![name, &info[..], at, until])?;
    }
    Ok(())
}

impl ReadTx<'_> {
    pub(crate) fn runners(self) -> StoreResult<Vec<Announced>> {
        self.all(&self.statements.runners, [self.now.as_millis()], |row| {
            Ok(Announced::new(
                row.get(0)?,
                Bytes::from(row.get::<_, Vec<u8>>(1)?),
                row.get(2).map(Timestamp::from_millis)?,
                row.get(3).map(Timestamp::from_millis)?,
            ))
        })
    }
}
