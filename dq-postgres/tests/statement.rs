//! Statements for the caller's own transaction.

use std::time::Duration;

use dq_core::{
    Backend, ClaimParams, Due, JobKey, JobRef, OnConflict, OnRunning, SqlStatement, Timestamp,
    Verdict, Want,
};
use tokio_postgres::{Client, Error, Row};

use crate::common::{claim, client, connect, database, job, queue, settle};

async fn execute(client: &Client, statement: &SqlStatement) -> Result<Vec<Row>, Error> {
    client.query(statement.sql(), &[&statement.argument()]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_stores_jobs_like_a_call() {
    let url = database().await;
    let (backend, client) = (connect(&url).await, client(&url).await);
    let keyed = |due: Due| job(due).key(JobKey::new("k").unwrap());
    let first = keyed(Due::After(Duration::from_secs(60)));
    let mut second = keyed(Due::NOW).on_conflict(OnConflict::Replace).max_attempts(7);
    second.payload = vec![0, 255].into();
    second.headers.insert("tenant", "\u{0}'\"");
    second.remember = Duration::from_secs(60);
    let outcomes = async |jobs| -> Vec<String> {
        let statement = backend.schedule_statement(jobs).unwrap();
        let rows = execute(&client, &statement).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    assert_eq!(outcomes(vec![]).await, Vec::<String>::new());
    assert_eq!(outcomes(vec![first, second.clone()]).await, ["created", "replaced"]);
    let claimed = claim(&backend, 9).await.jobs;
    let stored = &claimed[0].job;
    assert_eq!(
        (stored.id, &stored.payload, &stored.headers),
        (second.id, &second.payload, &second.headers)
    );
    assert_eq!((stored.max_attempts, stored.key.as_ref()), (Some(7), second.key.as_ref()));
    assert_eq!(outcomes(vec![keyed(Due::NOW)]).await, ["already_running"]);
    let mut detaching = keyed(Due::NOW);
    detaching.on_running = OnRunning::Detach;
    assert_eq!(outcomes(vec![detaching]).await, ["created"]);
    settle(&backend, &claimed, Verdict::Done).await;
    assert_eq!(outcomes(vec![second]).await, ["ended"], "its id is pinned");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_fails_the_transaction() {
    let url = database().await;
    let (backend, client) = (connect(&url).await, client(&url).await);
    client.batch_execute("CREATE TABLE effect ()").await.unwrap();
    backend.schedule(vec![job(Due::NOW)]).await.unwrap();
    let wants = [Want::new(queue(), 1, Duration::from_millis(1))];
    let first = backend.claim(ClaimParams::new(&wants, 1, "first")).await.unwrap().jobs.remove(0);
    let second = loop {
        if let Some(leased) = claim(&backend, 1).await.jobs.pop() {
            break leased;
        }
    };
    let attempt = async |lease| {
        client.batch_execute("BEGIN; INSERT INTO effect DEFAULT VALUES").await.unwrap();
        let done = execute(&client, &backend.done_statement(&lease).unwrap()).await.map(drop);
        // A failed transaction rolls back.
        client.batch_execute("COMMIT").await.unwrap();
        done.map_err(|error| error.as_db_error().unwrap().message().to_owned())
    };
    let lost = Err(format!("dq: the lease of job {} is lost", first.job.id));
    assert_eq!(attempt(first.lease()).await, lost, "the successor has another token");
    assert_eq!(attempt(second.lease()).await, Ok(()));
    assert_eq!(attempt(second.lease()).await, lost, "the job has ended");
    let effects = client.query_one("SELECT count(*) FROM effect", &[]).await.unwrap();
    assert_eq!(effects.get::<_, i64>(0), 1);
    assert_eq!(backend.get(&JobRef::new(queue(), first.job.id)).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn extreme_times_are_stored_as_by_a_call() {
    let url = database().await;
    let (backend, client) = (connect(&url).await, client(&url).await);
    let mut remembered = job(Due::NOW);
    remembered.remember = Duration::MAX;
    let far = [Due::At(Timestamp::MAX), Due::After(Duration::MAX)].map(job);
    let jobs = [&[remembered.clone()], &far[..]].concat();
    let statement = backend.schedule_statement(jobs.clone()).unwrap();
    for row in execute(&client, &statement).await.unwrap() {
        assert_eq!(row.get::<_, String>(0), "created");
    }
    let repeated = backend.schedule(jobs).await.unwrap();
    assert!(repeated.iter().all(dq_core::Scheduled::is_stored), "{repeated:?}");
    settle(&backend, &claim(&backend, 9).await.jobs, Verdict::Done).await;
    let ended = backend.schedule(vec![remembered]).await.unwrap();
    assert!(matches!(ended[..], [dq_core::Scheduled::Ended(_)]), "{ended:?}");
    for job in far {
        let get = format!("SELECT due = 'infinity' FROM dq.get('orders', id => '{}')", job.id);
        assert!(client.query_one(&get, &[]).await.unwrap().get::<_, bool>(0));
    }
}
