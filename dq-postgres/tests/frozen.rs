//! Format 2: tables written once must still be read the same way.

use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{
    Backend, BrowseParams, ClaimParams, DeadKind, Due, Ending, FencingToken, Flow, HistoryLimit,
    HistoryLimits, JobId, JobKey, JobRef, JobState, Lease, NewJob, QueueName, Scheduled, Settled,
    Settlement, Verdict, Want,
};
use dq_postgres::{PostgresBackend, PostgresConfig};
use dq_servers::shared_postgres;

use crate::common::{database, queue};
use crate::connect::connect;

const FORMAT_2: &str = include_str!("fixtures/format-2.sql");

/// In 2096: waiting jobs of the file are due then, and its leases expire then.
const FAR_FUTURE: i64 = 4_000_000_000_000;

const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

fn execute(url: &str, sql: &str) -> String {
    shared_postgres().psql(url, sql).unwrap()
}

/// Opens tables of format 2, with a history that has no job to trim.
async fn open_format_2() -> (String, PostgresBackend) {
    let url = database().await;
    execute(&url, FORMAT_2);
    let mut config = PostgresConfig::new(&url);
    config.response_timeout = Duration::from_secs(60);
    let history = HistoryLimits::all(HistoryLimit::new(100, CENTURY));
    let environment = Environment::default().history(history);
    let backend = PostgresBackend::connect(&config, &environment).await.unwrap();
    (url, backend)
}

fn id(last: u8) -> JobId {
    format!("01900000-0000-7000-8000-0000000000{last:02x}").parse().unwrap()
}

#[tokio::test]
async fn the_tables_are_those_of_the_file() {
    const TABLES: &str = "
        SELECT table_name::text, ordinal_position, column_name::text, data_type, is_nullable, column_default,
            generation_expression FROM information_schema.columns WHERE table_schema = 'dq'
        UNION ALL SELECT indexname, 0, indexdef, '', '', '', '' FROM pg_indexes WHERE schemaname = 'dq'
        UNION ALL SELECT conname, 0, pg_get_constraintdef(oid, true), conrelid::regclass::text, '', '', ''
            FROM pg_constraint WHERE connamespace = 'dq'::regnamespace AND contype <> 'n'
        UNION ALL SELECT viewname, 0, definition, '', '', '', '' FROM pg_views WHERE schemaname = 'dq'
        ORDER BY 1, 2, 3";
    let (of_file, _) = open_format_2().await;
    let new = database().await;
    connect(&new).await.unwrap();
    assert_eq!(execute(&of_file, TABLES), execute(&new, TABLES));
}

#[tokio::test]
async fn everything_in_the_file_is_read() {
    let (_, backend) = open_format_2().await;
    let orders = queue();
    let stats = backend.stats(std::slice::from_ref(&orders)).await.unwrap().remove(0);
    assert_eq!((stats.scheduled, stats.ready, stats.running, stats.dead), (1, 1, 2, 1));
    let totals = stats.totals.unwrap();
    assert_eq!((totals.done, totals.skipped), (1, 1));
    let limits = Flow::UNLIMITED.max_running(10).group_max_running(1);
    assert_eq!(stats.flow.overriding, Some(limits));
    assert_eq!(stats.flow.declared, limits.rate("1000/1s burst 1000".parse().unwrap()));
    let get =
        async |last| backend.get(&JobRef::new(orders.clone(), id(last))).await.unwrap().unwrap();

    let done = get(1).await;
    let ended = done.ended.unwrap();
    assert_eq!(
        (ended.ending, ended.reason, ended.at.as_millis()),
        (Ending::Done, None, 1_796_022_596_627)
    );
    assert_eq!((done.job.attempts, done.job.deliveries), (0, 1));
    assert_eq!((done.worker.as_deref(), done.job.key.unwrap().as_str()), (Some("test"), "order-1"));
    assert_eq!(done.leased_since.unwrap().as_millis(), 1_796_022_596_605);
    let skipped = get(2).await.ended.unwrap();
    assert_eq!((skipped.ending, skipped.reason.as_deref()), (Ending::Skipped, Some("it is paid")));
    let listed = backend.browse(BrowseParams::new(&orders, JobState::Ended)).await.unwrap();
    assert_eq!(listed.jobs.len(), 2);

    let retried = get(3).await;
    assert_eq!((retried.state, retried.job.attempts), (JobState::Scheduled, 1));
    let dues = [retried.job.first_due, retried.job.due].map(|due| due.as_millis());
    assert_eq!(dues, [1_796_022_596_587, FAR_FUTURE]);
    assert_eq!(retried.last_error.as_deref(), Some("connect refused"));
    assert_eq!(
        (retried.job.headers.get("tenant"), &retried.job.payload[..]),
        (Some("acme"), &[3][..])
    );
    let dead = get(5).await;
    let (reason, _) = dead.dead.unwrap();
    assert_eq!(
        (dead.job.attempts, reason.kind, &*reason.message),
        (1, DeadKind::Rejected, "no such host")
    );
    assert_eq!(get(6).await.state, JobState::Ready, "it waits for its group");

    let again = NewJob::new(id(1), orders.clone(), Due::NOW, vec![1].into());
    let again = backend.schedule(vec![again.key(JobKey::new("order-1").unwrap())]).await.unwrap();
    assert!(matches!(again[..], [Scheduled::Ended(_)]), "its id is pinned: {again:?}");
    let runners = backend.runners().await.unwrap();
    assert_eq!(
        (runners[0].name.as_str(), &runners[0].info[..]),
        ("web-1", &b"{\"host\":\"a\"}"[..])
    );
    let paused = QueueName::new("paused").unwrap();
    assert!(backend.stats(&[paused]).await.unwrap()[0].paused);
}

#[tokio::test]
async fn a_job_leased_in_the_file_is_settled_and_its_group_goes_on() {
    let (_, backend) = open_format_2().await;
    let wants = [Want::new(queue(), 9, Duration::from_secs(60))];
    let claim = async || backend.claim(ClaimParams::new(&wants, 9, "new")).await.unwrap().jobs;
    assert_eq!(claim().await, [], "its group is full");
    let lease = Lease { queue: queue(), job: id(4), token: FencingToken(1_796_022_596_732_000) };
    let settled = backend.settle(&[Settlement::new(lease, Verdict::Done)]).await.unwrap();
    assert_eq!(settled, [Settled::Accepted]);
    let claimed = claim().await;
    assert_eq!(claimed.iter().map(|leased| leased.job.id).collect::<Vec<_>>(), [id(6)]);
}
