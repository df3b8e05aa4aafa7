//! Runner announcements.

use bytes::Bytes;
use dq_core::{Announced, Announcement, Result, Timestamp};
use tokio_postgres::types::Type;

use crate::error::unexpected;
use crate::params;
use crate::store::Store;

impl Store {
    /// Also drops expired announcements.
    pub(crate) async fn announce_runner(&self, announcement: &Announcement) -> Result<()> {
        let Announcement { name, info, ttl, .. } = announcement;
        let (name, info, ttl) = (params::text(name), &info[..], params::millis(*ttl));
        self.change(
            "SELECT dq.announce($1, $2, $3)",
            &[(&name, Type::TEXT), (&info, Type::BYTEA), (&ttl, Type::INT8)],
        )
        .await
        .map(drop)
    }

    pub(crate) async fn list_runners(&self) -> Result<Vec<Announced>> {
        let sql = "SELECT name, info, at, until FROM dq.runner WHERE until > dq.now_ms() \
                   ORDER BY name COLLATE \"C\"";
        let rows = self.read(sql, &[]).await?;
        let runner = |row: &tokio_postgres::Row| {
            Some(Announced::new(
                row.try_get(0).ok()?,
                Bytes::copy_from_slice(row.try_get(1).ok()?),
                Timestamp::from_millis(row.try_get(2).ok()?),
                Timestamp::from_millis(row.try_get(3).ok()?),
            ))
        };
        rows.iter().map(|row| runner(row).ok_or_else(unexpected)).collect()
    }
}
