//! A user's permissions: the documented ones are sufficient, each missing one is named, and a
//! revoked one stops no job.

use std::sync::Arc;

use dq_core::config::Secret;
use dq_core::{Backend, Cancelled, Dq, DurationExt, ErrorKind, Finding, Severity};
use dq_rabbit::{QueueKind, RabbitConfig, TopologyMode};
use dq_servers::shared_rabbitmq;

use crate::fixture::{
    LONG_LEASE, after, assert_error, assert_helpful, blocking, by_id, claim, claim_until_some,
    close_connections, config, connect, done_settlements, in_an_hour, job, open, poll, queue,
    retry, start_runner, stats, wait_until,
};

const ALL: &str = r"^dq\.v1\.";
const CANARY: &str = r"^dq\.v1\.canary\.";

struct Tenant {
    vhost: &'static str,
    config: RabbitConfig,
}

impl Tenant {
    fn new(vhost: &'static str) -> Self {
        let mut config = config(vhost);
        shared_rabbitmq().ctl(&["add_user", vhost, "hunter2"]);
        let login = format!("{vhost}:hunter2");
        config.url = Secret::new(config.url.expose().replace("dq:secret", &login));
        Self { vhost, config }
    }

    fn grant(&self, configure: &str, write: &str, read: &str) {
        let permissions = [self.vhost, self.vhost, configure, write, read];
        shared_rabbitmq().ctl(&[&["set_permissions", "-p"][..], &permissions].concat());
    }

    /// Grants these rights also to open connections, of which each caches its user's permissions.
    async fn grant_at_once(&self, configure: &str, write: &str, read: &str) {
        self.grant(configure, write, read);
        let vhost = self.vhost;
        blocking(move || close_connections(vhost)).await;
    }

    fn with_topology(&self, topology: TopologyMode) -> RabbitConfig {
        let mut config = self.config.clone();
        config.topology = topology;
        config
    }
}

/// Makes calls, and waits until `check` finds exactly these codes, because on a busy broker the
/// ladder may seem stalled at first.
async fn use_backend(backend: Arc<dyn Backend>, codes: &[&str]) -> Vec<Finding> {
    let dq = Dq::builder().backend(Arc::clone(&backend)).connect().await.unwrap();
    let client = dq.queue("Q").unwrap();
    let _ = client.schedule("1", "application/json").after(1.hours()).key("later").await.unwrap();
    let _ = client.schedule("2", "application/json").after(2.seconds()).await.unwrap();
    assert_eq!(client.cancel("later").await.unwrap(), Cancelled::Cancelled);
    let _wakeups = backend.listen(&[queue("Q")], "test").await.unwrap();
    let claimed = claim_until_some(&*backend, "Q", LONG_LEASE).await;
    assert_eq!(&claimed.jobs[0].job.payload[..], b"2");
    let findings = poll(&format!("exactly {codes:?}"), async || {
        let mut findings = dq.check().await;
        // A job may run before its message comes.
        let unrelated = ["rabbitmq.gauges", "rabbitmq.messages-late"];
        findings.retain(|finding| !unrelated.contains(&finding.code));
        println!("{findings:?}");
        findings.iter().map(|finding| finding.code).eq(codes.iter().copied()).then_some(findings)
    })
    .await;
    dq.close().await.unwrap();
    findings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_permissions_are_sufficient() {
    let mut tenant = Tenant::new("rights-documented");
    tenant.config.queues = QueueKind::Quorum;
    tenant.grant(ALL, ALL, ALL);
    use_backend(open(&tenant.config).await, &[]).await;

    tenant.grant("", ALL, ALL);
    let backend = open(&tenant.with_topology(TopologyMode::Passive)).await;
    let untested = use_backend(backend, &["rabbitmq.ladder-untested"]).await.remove(0);
    assert_eq!(untested.severity, Severity::Info);
    assert!(untested.cause.contains("canary"), "{untested}");
    assert!(untested.remedy.contains(CANARY), "{untested}");

    tenant.grant(CANARY, ALL, ALL);
    use_backend(open(&tenant.with_topology(TopologyMode::Passive)).await, &[]).await;
}

/// The broker checks permissions when an object is used, not when it is declared passively.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_name_each_missing_permission() {
    let tenant = Tenant::new("rights-missing");
    let owner = open(&config(tenant.vhost)).await;
    let passive = tenant.with_topology(TopologyMode::Passive);
    for (write, read, missing) in
        [("", ALL, "permission to write"), (ALL, "", "permission to read")]
    {
        tenant.grant(ALL, write, read);
        let words = [missing, "set_permissions"];
        assert_error(connect(&tenant.config).await, ErrorKind::Config, &words);
        let words = [tenant.vhost, "set_permissions"];
        assert_error(connect(&passive).await, ErrorKind::Config, &words);
    }

    // Only missing objects have to be declared.
    tenant.grant("", ALL, ALL);
    retry(|| connect(&tenant.config)).await.close().await.unwrap();
    let mut elsewhere = tenant.config.clone();
    elsewhere.prefix = "elsewhere".to_owned();
    let words = ["permission to configure", "set_permissions"];
    assert_error(connect(&elsewhere).await, ErrorKind::Config, &words);

    tenant.grant(ALL, ALL, ALL);
    let backend = retry(|| connect(&tenant.config)).await;
    let kept = in_an_hour(job("q"));
    retry(|| backend.schedule(vec![kept.clone()])).await;
    tenant.grant_at_once(ALL, "", ALL).await;
    retry(|| owner.stats(&[])).await;
    assert_helpful(&backend.cancel(&[by_id(&kept)]).await.unwrap_err(), &[]);
    assert_eq!(stats(&*owner, "q").await.scheduled, 1);

    tenant.grant(ALL, ALL, ALL);
    let new = job("q");
    wait_until("writing is permitted again", async || {
        backend.schedule(vec![new.clone()]).await.is_ok()
    })
    .await;
    let claimed = claim(&*owner, "q", 9).await.unwrap();
    assert_eq!(claimed.jobs.len(), 1, "refused calls have not taken effect");
    owner.settle(&done_settlements(&claimed)).await.unwrap();
    assert_eq!(stats(&*owner, "q").await.scheduled, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_right_to_configure_stops_no_job() {
    let tenant = Tenant::new("rights-revoked");
    tenant.grant(ALL, ALL, ALL);
    let backend = open(&tenant.config).await;
    let mut runner = start_runner(&backend, "q").await;
    let before = after(1_500, job("q"));
    backend.schedule(vec![before.clone()]).await.unwrap();
    runner.expect_each_once(&[before]).await;

    tenant.grant_at_once("^$", ALL, ALL).await;
    let new = after(1_500, job("q"));
    wait_until("jobs are scheduled again", async || {
        backend.schedule(vec![new.clone()]).await.is_ok()
    })
    .await;
    runner.expect_each_once(&[new]).await;
    // Everything exists, so a new process needs no right to configure.
    assert_eq!(stats(&*open(&tenant.config).await, "q").await.totals.unwrap().done, 2);
}
