//! Renews leases.

use std::collections::HashMap;

use dq_core::{Renewal, Renewed, Result, Timestamp};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::unexpected;
use crate::params;
use crate::store::Store;

impl Store {
    pub(crate) async fn renew_leases(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let ids: Vec<Uuid> =
            renewals.iter().map(|renewal| params::uuid(renewal.lease.job)).collect();
        let tokens: Vec<i64> =
            renewals.iter().map(|renewal| params::token(renewal.lease.token)).collect();
        let leases: Vec<i64> =
            renewals.iter().map(|renewal| params::millis(renewal.lease_for).max(1)).collect();
        let rows = self
            .change(
                "SELECT id, token, until FROM dq.renew($1, $2, $3)",
                &[
                    (&ids, Type::UUID_ARRAY),
                    (&tokens, Type::INT8_ARRAY),
                    (&leases, Type::INT8_ARRAY),
                ],
            )
            .await?;
        let mut ends: HashMap<(Uuid, i64), i64> = HashMap::with_capacity(rows.len());
        for row in rows {
            let lease = (row.try_get(0), row.try_get(1), row.try_get(2));
            let (Ok(id), Ok(token), Ok(until)) = lease else { return Err(unexpected()) };
            ends.insert((id, token), until);
        }
        let leases = ids.into_iter().zip(tokens);
        let renewed = renewals.iter().zip(leases).map(|(renewal, lease)| match ends.get(&lease) {
            Some(until) => {
                self.lower_expiry(&renewal.lease.queue, *until);
                Renewed::Until(Timestamp::from_millis(*until))
            }
            None => Renewed::LostLease,
        });
        Ok(renewed.collect())
    }
}
