//! Findings about the server, its settings and the schema.

use dq_core::{Error, Finding, Result, Severity};
use tokio_postgres::types::Type;

use crate::connect::Param;
use crate::error::unexpected;
use crate::schema;
use crate::store::Store;

/// An older snapshot keeps index entries of many ended jobs.
const OLD_SNAPSHOT_SECONDS: i64 = 300;

/// As many as claims and settlements make in minutes.
const OLD_SNAPSHOT_TRANSACTIONS: i32 = 100_000;

/// Half the age at which PostgreSQL stops writing.
const OLD_XIDS: i64 = 1_000_000_000;

const FACTS: &str = "
    SELECT current_setting('fsync') AS fsync,
        current_setting('synchronous_commit') AS synchronous_commit,
        current_setting('autovacuum') AS autovacuum,
        current_setting('server_encoding') AS encoding,
        age(datfrozenxid)::bigint AS xids
    FROM pg_database WHERE datname = current_database()";

/// Who holds back the removal of dead rows, and since when. The age of a standby's snapshot is only
/// known in transactions.
const HOLDERS: &str = "
    SELECT holder, coalesce(seconds || ' s', transactions || ' transactions') FROM (
        SELECT format('session %s of %s (%s, %s)', pid, coalesce(usename, 'another user'),
                coalesce(nullif(application_name, ''), 'no application name'),
                coalesce(state, backend_type)) AS holder,
            extract(epoch FROM clock_timestamp() - xact_start)::bigint AS seconds,
            greatest(age(backend_xmin), age(backend_xid)) AS transactions
        FROM pg_stat_activity
        WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
            AND backend_type NOT IN ('autovacuum worker', 'walsender')
        UNION ALL
        SELECT format('prepared transaction %s of %s', gid, owner),
            extract(epoch FROM clock_timestamp() - prepared)::bigint, age(transaction)
        FROM pg_prepared_xacts
        UNION ALL
        SELECT format('standby %s at %s', application_name, coalesce(host(client_addr), 'a socket')),
            NULL, age(backend_xmin)
        FROM pg_stat_replication
        UNION ALL
        SELECT format('the standby of replication slot %s', slot_name), NULL, age(xmin)
        FROM pg_replication_slots WHERE active
    ) AS holders
    WHERE seconds > $1 OR seconds IS NULL AND transactions > $2
    ORDER BY transactions DESC LIMIT 1";

const INACTIVE_SLOT: &str = "
    SELECT slot_name::text FROM pg_replication_slots
    WHERE NOT active AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL) LIMIT 1";

const QUARANTINED: &str = "
    SELECT id::text, name FROM dq.queue JOIN dq.job USING (q)
    WHERE state = 2 AND at > dq.now_ms() - 86400000 AND kind = 'quarantined'
    ORDER BY at DESC LIMIT 1";

fn warning(code: &'static str, cause: String, remedy: &str) -> Finding {
    Finding::new(Severity::Warning, code, cause, remedy)
}

pub(crate) fn unreadable(error: &Error) -> Finding {
    let remedy = error.remedy_text().unwrap_or("see the log");
    Finding::new(Severity::Error, "postgres.unreadable", error.message(), remedy)
}

impl Store {
    pub(crate) async fn findings(&self) -> Vec<Finding> {
        match self.try_findings().await {
            Ok(findings) => findings,
            Err(error) => vec![unreadable(&error)],
        }
    }

    async fn try_findings(&self) -> Result<Vec<Finding>> {
        schema::exists(&self.pool, &self.schema).await?;
        let mut findings = self.settings().await?;
        findings.extend(self.horizon(OLD_SNAPSHOT_SECONDS, OLD_SNAPSHOT_TRANSACTIONS).await?);
        let quarantined = self.read(QUARANTINED, &[]).await?;
        if let Some(row) = quarantined.first() {
            let (id, queue): (&str, &str) = (row.get(0), row.get(1));
            findings.push(warning(
                "postgres.quarantined",
                format!("job {id} of queue {queue} could not be read, and is dead"),
                "find the program that has written or changed its row; the dead job has the reason",
            ));
        }
        Ok(findings)
    }

    async fn settings(&self) -> Result<Vec<Finding>> {
        let rows = self.read(FACTS, &[]).await?;
        let row = rows.first().ok_or_else(unexpected)?;
        let mut findings = Vec::new();
        if row.get::<_, &str>("fsync") == "off" {
            findings.push(Finding::new(
                Severity::Error,
                "postgres.fsync-off",
                "`fsync` is off: a crash of the server's machine may lose or corrupt all jobs",
                "set `fsync = on`",
            ));
        }
        if row.get::<_, &str>("synchronous_commit") == "off" {
            findings.push(warning(
                "postgres.asynchronous-commit",
                "`synchronous_commit` is off: a crash of the server may lose the last stored jobs"
                    .into(),
                "set `synchronous_commit = on` for this role",
            ));
        }
        if row.get::<_, &str>("autovacuum") == "off" {
            findings.push(warning(
                "postgres.autovacuum-off",
                "`autovacuum` is off: the tables grow, and claims become slow".into(),
                "set `autovacuum = on`",
            ));
        }
        if row.get::<_, &str>("encoding") != "UTF8" {
            findings.push(warning(
                "postgres.encoding",
                format!("the database's encoding is {}", row.get::<_, &str>("encoding")),
                "use a database with the encoding UTF8: others cannot store all queue names and keys",
            ));
        }
        if row.get::<_, i64>("xids") > OLD_XIDS {
            findings.push(Finding::new(
                Severity::Error,
                "postgres.transaction-ids",
                "the database's oldest transaction id is so old that PostgreSQL will stop writing",
                "find what holds back autovacuum (old transactions, prepared ones, replication \
                 slots), and run VACUUM FREEZE",
            ));
        }
        Ok(findings)
    }

    /// Names who keeps dead rows from being removed, if the snapshot is older than this.
    async fn horizon(&self, seconds: i64, transactions: i32) -> Result<Option<Finding>> {
        const REMEDY: &str = "end that transaction, on a standby too, or turn off the standby's \
            `hot_standby_feedback`; `idle_in_transaction_session_timeout` limits forgotten ones";
        let params: [Param<'_>; 2] = [(&seconds, Type::INT8), (&transactions, Type::INT4)];
        let holders = self.read(HOLDERS, &params).await?;
        if let Some(row) = holders.first() {
            let (holder, age): (&str, &str) = (row.get(0), row.get(1));
            let cause = format!("{holder} has held an old snapshot for {age}: dead rows pile up");
            return Ok(Some(warning("postgres.old-snapshot", cause, REMEDY)));
        }
        let slots = self.read(INACTIVE_SLOT, &[]).await?;
        Ok(slots.first().map(|row| {
            let cause = format!(
                "the replication slot {} is inactive and keeps dead rows",
                row.get::<_, &str>(0)
            );
            warning("postgres.inactive-slot", cause, "connect its standby, or drop the slot")
        }))
    }
}

#[cfg(test)]
mod tests {
    use dq_core::config::Environment;
    use dq_servers::Postgres;
    use dq_testkit::fixture::wait_until;

    use crate::{PostgresBackend, PostgresConfig};

    #[tokio::test(flavor = "multi_thread")]
    async fn each_holder_of_an_old_snapshot_is_named() {
        let primary = Postgres::options().set("max_prepared_transactions", "1").start();
        let url = primary.url();
        let config = PostgresConfig::new(url.as_str());
        let backend = PostgresBackend::connect(&config, &Environment::default()).await.unwrap();
        let names = async |words: &str| {
            let found = backend.store.horizon(-1, -1).await.unwrap();
            found.is_some_and(|found| found.cause.contains(words))
        };
        let named = async |words: &str| wait_until(words, async || names(words).await).await;
        let (client, connection) = tokio_postgres::connect(
            &format!("{url}?application_name=report"),
            tokio_postgres::NoTls,
        )
        .await
        .unwrap();
        tokio::spawn(connection);
        let execute = async |sql: &str| client.batch_execute(sql).await.unwrap();

        execute("BEGIN; SELECT pg_current_xact_id()").await;
        named("of dq (report, idle in transaction) has held an old snapshot for ").await;
        execute("PREPARE TRANSACTION 'transfer'").await;
        named("prepared transaction transfer of dq has held an old snapshot for ").await;
        execute("COMMIT PREPARED 'transfer'").await;

        let standby = Postgres::options()
            .standby_of(&primary)
            .set("hot_standby_feedback", "on")
            .set("wal_receiver_status_interval", "1s")
            .start();
        named("standby walreceiver at a socket has held an old snapshot for ").await;
        execute("SELECT pg_create_physical_replication_slot('replica')").await;
        standby.execute("ALTER SYSTEM SET primary_slot_name = 'replica'");
        standby.execute("SELECT pg_reload_conf()");
        named("the standby of replication slot replica has held an old snapshot for ").await;
        standby.stop();
        named("the replication slot replica is inactive").await;
    }
}
