//! The rights that the guide lists are sufficient, and a missing one is named.

use std::time::Duration;

use dq_core::config::backend_from_url;
use dq_core::{
    Announcement, BrowseParams, DeadKind, DeadReason, Due, ErrorKind, Flow, JobState, Operation,
    Renewal, Reschedule, Result, Settlement, Timestamp, Verdict,
};
use dq_servers::{Postgres, shared_postgres};
use dq_testkit::fixture::{
    TestRunner, assert_error, by_id, claim_for, in_an_hour, job, keyed, queue,
};

use crate::connect::{connect, open};
use crate::schema::migrate;

/// A database with the schema, in which only `runner` has the rights, not every role.
async fn prepare() -> (&'static Postgres, String, String) {
    let postgres = tokio::task::spawn_blocking(shared_postgres).await.unwrap();
    let url = postgres.create_database();
    let sql = "
        DO $$ BEGIN CREATE ROLE runner LOGIN;
            EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
        ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;";
    let schema = backend_from_url(&url).unwrap().schema_sql(Some("runner")).unwrap();
    postgres.psql(&url, &format!("{sql}{schema}")).unwrap();
    let as_runner = url.replace("dq@", "runner@");
    (postgres, url, as_runner)
}

/// Connects and makes every call that a runner and an operator make, until one fails.
async fn use_store(url: &str) -> Result<()> {
    let backend = connect(url).await?;
    let (queue, lease) = (queue("q"), Duration::from_secs(60));
    // An earlier use may have failed in between.
    for operation in [Operation::Resume { queue: &queue }, Operation::Purge { queue: &queue }] {
        backend.operate(operation).await?;
    }
    let flow = Flow::UNLIMITED.max_running(1_000).rate("1000/1s burst 1000".parse()?);
    for flow in [flow, flow.group_max_running(1)] {
        backend.operate(Operation::DeclareFlow { queue: &queue, flow }).await?;
    }
    let pinned = job("q").remember(lease);
    // An earlier use's group stays full if it failed behind its claim.
    let group = pinned.id.to_string();
    let grouped = || job("q").group(&*group);
    backend.schedule(vec![grouped(), grouped()]).await?;
    backend.schedule(vec![job("q"), pinned.clone()]).await?;
    for _ in 0..2 {
        backend.schedule(vec![pinned.clone(), in_an_hour(keyed("q", "k"))]).await?;
    }
    let claimed = claim_for(&*backend, &["q"], 100, lease).await?.jobs;
    // The claims below go along the groups.
    let flow = flow.group_max_running(2);
    backend.operate(Operation::DeclareFlow { queue: &queue, flow }).await?;
    for leased in &claimed {
        backend.renew(&[Renewal::new(leased.lease(), lease)]).await?;
    }
    let dead = Verdict::dead(DeadReason::new(DeadKind::Rejected, "no"));
    for (leased, verdict) in claimed.iter().zip([Verdict::Done, dead, Verdict::Done]) {
        backend.settle(&[Settlement::new(leased.lease(), verdict)]).await?;
    }
    for verdict in [Verdict::Release { started: false }, Verdict::Throttle(Due::NOW)] {
        backend.schedule(vec![job("q")]).await?;
        let leased = claim_for(&*backend, &["q"], 1, lease).await?.jobs;
        backend.settle(&[Settlement::new(leased[0].lease(), verdict)]).await?;
    }
    let ids = [claimed[1].job.id];
    backend.operate(Operation::Replay { queue: &queue, jobs: &ids, due: Due::NOW }).await?;
    for state in [JobState::Ready, JobState::Running, JobState::Dead, JobState::Ended] {
        backend.browse(BrowseParams::new(&queue, state)).await?;
    }
    let last = grouped();
    let target = by_id(&last);
    backend.schedule(vec![last]).await?;
    backend.get(&target).await?;
    backend.reschedule(&[Reschedule { job: target.clone(), due: Due::NOW }]).await?;
    backend.cancel(&[target]).await?;
    backend.stats(&[]).await?;
    backend.forecast(&queue, &[Timestamp::EPOCH, Timestamp::from_millis(1)]).await?;
    backend.announce(Announcement::new("web", "{}", lease)).await?;
    backend.runners().await?;
    for operation in [
        Operation::Remove { queue: &queue, jobs: &ids },
        Operation::Pause { queue: &queue },
        Operation::Resume { queue: &queue },
        Operation::Purge { queue: &queue },
    ] {
        backend.operate(operation).await?;
    }
    backend.now().await?;
    let findings = backend.check().await;
    assert!(findings.iter().all(|found| !found.code.contains("unreadable")), "{findings:?}");
    Ok(())
}

#[test]
fn the_guide_lists_the_rights_that_are_granted() {
    let config = backend_from_url("postgres://localhost/shop").unwrap();
    let sql = config.schema_sql(Some("shop")).unwrap();
    let granted = sql.lines().filter(|line| line.starts_with("GRANT "));
    let granted: Vec<String> = granted.map(|line| line.replace('"', "")).collect();
    let guide = include_str!("../../docs/guide/postgres.md").lines();
    let listed = guide.filter(|line| line.starts_with("GRANT ") && !line.contains("optional"));
    let listed: Vec<&str> = listed.map(|line| line.split("  --").next().unwrap()).collect();
    assert_eq!(granted, listed);
    assert_eq!(granted.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_without_create_does_everything_on_an_existing_schema() {
    let (postgres, _, url) = prepare().await;
    use_store(&url).await.unwrap();
    let backend = open(&url).await;
    let mut runner = TestRunner::start(&backend, &["flow"]).await;
    let jobs: Vec<_> = (0..20).map(|_| job("flow")).collect();
    backend.schedule(jobs.clone()).await.unwrap();
    runner.expect_each_once(&jobs).await;
    for sql in ["CREATE TABLE dq.other ()", "CREATE SCHEMA other", "DROP TABLE dq.tally"] {
        postgres.psql(&url, sql).expect_err("the role has more rights than it needs");
    }
}

/// Maintenance, which no call waits for.
#[tokio::test]
async fn maintenance_needs_no_other_rights() {
    let (postgres, _, as_runner) = prepare().await;
    use_store(&as_runner).await.unwrap();
    for function in [
        "dq.fold_tally()",
        "dq.trim_gates()",
        "dq.trim_history('q', 0, 1)",
        "dq.remove_pins('q', 0, 1)",
        "dq.raise_floors(ARRAY['q'], ARRAY[1::bigint], ARRAY[1::bigint], ARRAY[0::bigint])",
        "dq.limit_histories(10, 60000, ARRAY['q'], ARRAY[5], ARRAY[60000::bigint])",
    ] {
        postgres.psql(&as_runner, &format!("SELECT {function}")).unwrap();
    }
}

/// Rights and their object's name, without those for maintenance.
const RIGHTS: &str = "
    SELECT 'USAGE ON SCHEMA dq', 'dq'
    UNION SELECT 'SELECT, INSERT, UPDATE, DELETE ON dq.' || relname, relname FROM pg_class
        WHERE relnamespace = 'dq'::regnamespace AND relkind IN ('r', 'v')
    UNION SELECT 'ALL ON SEQUENCE dq.' || relname, relname FROM pg_class
        WHERE relnamespace = 'dq'::regnamespace AND relkind = 'S' AND relname <> 'queue_q_seq'
    UNION SELECT 'EXECUTE ON FUNCTION ' || oid::regprocedure, proname FROM pg_proc
        WHERE pronamespace = 'dq'::regnamespace AND proname NOT IN
            ('fold_tally', 'trim_gates', 'trim_history', 'remove_pins', 'raise_floors', 'limit_histories')";

#[tokio::test]
async fn a_missing_right_is_named() {
    let (postgres, url, as_runner) = prepare().await;
    let rights = postgres.psql(&url, RIGHTS).unwrap();
    assert!(rights.lines().count() > 30, "{rights}");
    let mut not_needed = Vec::new();
    for line in rights.lines() {
        let (right, name) = line.split_once('|').unwrap();
        postgres.psql(&url, &format!("REVOKE {right} FROM runner")).unwrap();
        match use_store(&as_runner).await {
            Ok(()) => not_needed.push(name),
            refusal => {
                let words = ["permission denied", name, "grant the role"];
                assert_error(refusal, ErrorKind::Config, &words);
            }
        }
        postgres.psql(&url, &format!("GRANT {right} TO runner")).unwrap();
    }
    // Applications call these in their own transactions.
    let api = include_str!("../src/sql/api.sql");
    not_needed.retain(|name| !api.contains(&format!("FUNCTION dq.{name}(")));
    assert!(not_needed.is_empty(), "no call needs {not_needed:?}");
}

#[tokio::test]
async fn a_role_that_may_not_create_a_missing_schema_or_function() {
    let (postgres, url, as_runner) = prepare().await;
    let missing = format!("{as_runner}?schema=other");
    let name = url.rsplit('/').next().unwrap();
    let words = ["permission denied for database", name, "grant the role"];
    assert_error(connect(&missing).await, ErrorKind::Config, &words);
    for outdated in ["DROP FUNCTION dq.store_job", "UPDATE dq.meta SET functions = 0"] {
        postgres.psql(&url, outdated).unwrap();
        let words = ["schema dq (tables 2, functions ", "permission denied", "dq migrate"];
        assert_error(connect(&as_runner).await, ErrorKind::Config, &words);
        // The remedy.
        migrate(&url, Some("runner")).await;
        use_store(&as_runner).await.unwrap();
    }
    // A newer version's functions may do.
    postgres.psql(&url, "UPDATE dq.meta SET functions = 1000").unwrap();
    use_store(&as_runner).await.unwrap();
}
