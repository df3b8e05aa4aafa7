//! The same tests on different stores, each with its own clock.

use std::time::{Duration, Instant};

use dq_core::{
    Backend as _, ClaimParams, DeadKind, DeadReason, Dq, Due, DurationExt, JobState, LeasedJob,
    QueueName, Settlement, Target, Verdict, Want,
};
use dq_ops::{
    Actor, BulkAction, JobFilter, JobQuery, Ops, OpsError, Role, ScheduleRequest, ScheduleResult,
    Session, WaitReason, parse_target,
};
use dq_redis as _;
use dq_sqlite as _;

const PATIENCE: Duration = Duration::from_secs(120);

struct Store {
    dq: Dq,
    session: Session,
    queue: QueueName,
}

fn key(text: &str) -> Target {
    parse_target(&format!("key:{text}")).unwrap()
}

impl Store {
    async fn open(url: &str) -> Self {
        let dq = Dq::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        let session = Ops::new(dq.clone()).session(Actor::new("ada", Role::Admin));
        Self { dq, session, queue: QueueName::new("a/../b?c#d").unwrap() }
    }

    async fn schedule(&self, key: &str, due: Due) {
        let mut request = ScheduleRequest::new(format!("{{\"name\": \"{key}\"}}"));
        (request.key, request.due) = (Some(key.to_owned()), due);
        let scheduled = self.session.schedule(&self.queue, request).await.unwrap();
        assert_eq!(scheduled.result, ScheduleResult::Created);
    }

    async fn claim(&self) -> LeasedJob {
        let wants = [Want::new(self.queue.clone(), 100, 10.minutes())];
        let deadline = Instant::now() + PATIENCE;
        loop {
            let params = ClaimParams::new(&wants, 100, "web-3");
            if let Some(job) = self.dq.backend().claim(params).await.unwrap().jobs.pop() {
                return job;
            }
            assert!(Instant::now() < deadline, "no job becomes claimable");
            tokio::time::sleep(10.millis()).await;
        }
    }

    async fn settle(&self, job: &LeasedJob, verdict: Verdict) {
        self.dq.backend().settle(&[Settlement::new(job.lease(), verdict)]).await.unwrap();
    }

    async fn keys(&self, query: &mut JobQuery) -> Vec<String> {
        let mut keys = Vec::new();
        loop {
            let page = self.session.jobs(&self.queue, query).await.unwrap();
            keys.extend(page.jobs.into_iter().filter_map(|job| job.key));
            query.after = page.next;
            if query.after.is_none() {
                return keys;
            }
        }
    }
}

async fn operate_on(url: &str) {
    let store = Store::open(url).await;
    waiting_jobs_are_listed_and_change(&store).await;
    a_job_runs_dies_and_is_replayed(&store).await;
    a_request_is_repeated(&store).await;
    the_queue_is_paused_and_purged(&store).await;
    store.dq.close().await.unwrap();
}

async fn waiting_jobs_are_listed_and_change(store: &Store) {
    let (session, queue) = (&store.session, &store.queue);
    for number in 1..=5_u64 {
        store.schedule(&format!("order-{number}"), Due::After(number.hours())).await;
    }
    store.schedule("other", Due::After(1.hours())).await;
    assert_eq!(session.queue(queue).await.unwrap().scheduled, 6);
    let mut query = JobQuery::new(JobState::Scheduled);
    query.limit = 2;
    query.filter.key_prefix = Some("order-".to_owned());
    let expected: Vec<_> = (1..=5).map(|number| format!("order-{number}")).collect();
    assert_eq!(store.keys(&mut query).await, expected);
    query.descending = true;
    assert!(store.keys(&mut query).await.iter().eq(expected.iter().rev()));
    query.filter = JobFilter::default();
    query.contains = Some("order-3".to_owned());
    assert_eq!(store.keys(&mut query).await, ["order-3"]);

    let job = session.job(queue, &key("order-1")).await.unwrap();
    assert_eq!(job.payload.unwrap().json.unwrap().as_str(), r#"{"name":"order-1"}"#);
    let timeline = session.timeline(queue, &key("order-1")).await.unwrap();
    assert!(matches!(timeline.now, Some(WaitReason::NotDue { .. })), "{timeline:?}");
    let forecast = session.forecast(queue, 24.hours(), 24).await.unwrap();
    assert_eq!(forecast.counts.iter().sum::<u64>(), 6);

    session.reschedule(queue, &key("order-1"), Due::After(9.hours())).await.unwrap();
    query = JobQuery::new(JobState::Scheduled);
    assert_eq!(store.keys(&mut query).await.last().unwrap(), "order-1");
    session.cancel(queue, &key("order-1")).await.unwrap();
    let gone = session.cancel(queue, &key("order-1")).await.unwrap_err();
    assert!(matches!(gone, OpsError::NotFound { .. }), "{gone}");

    let mut filter = JobFilter::default();
    filter.key_prefix = Some("order-".to_owned());
    let count = session.count(queue, BulkAction::Cancel, &filter).await.unwrap();
    assert_eq!((count.matching, count.complete), (4, true));
    let fewer = session.bulk(queue, BulkAction::Cancel, &filter, Some(3)).await.unwrap_err();
    assert!(matches!(fewer, OpsError::Conflict { .. }), "{fewer}");
    let report = session.bulk(queue, BulkAction::Cancel, &filter, Some(4)).await.unwrap();
    assert_eq!(report.changed, 4);
}

async fn a_job_runs_dies_and_is_replayed(store: &Store) {
    let (session, queue) = (&store.session, &store.queue);
    session.run_now(queue, &key("other")).await.unwrap();
    let job = store.claim().await;
    let running = session.job(queue, &key("other")).await.unwrap().job;
    assert_eq!((running.state, running.worker.as_deref()), (JobState::Running, Some("web-3")));
    let reason = DeadReason::new(DeadKind::Exhausted, "host 7 refused");
    store.settle(&job, Verdict::Dead { reason, failed: true }).await;
    let dead = session.dead(queue).await.unwrap();
    assert_eq!((dead.groups[0].pattern.as_str(), dead.groups[0].count), ("host # refused", 1));
    let mut filter = JobFilter::default();
    filter.error = Some(dead.groups[0].search.clone());
    let report = session.bulk(queue, BulkAction::Replay, &filter, Some(1)).await.unwrap();
    assert_eq!(report.changed, 1);
    let job = store.claim().await;
    store.settle(&job, Verdict::Done).await;
    assert_eq!(session.dead(queue).await.unwrap().groups, []);
}

async fn a_request_is_repeated(store: &Store) {
    let (session, queue) = (&store.session, &store.queue);
    let mut request = ScheduleRequest::new("1");
    request.idempotency_key = Some("request-1".to_owned());
    let first = session.schedule(queue, request.clone()).await.unwrap();
    let job = store.claim().await;
    assert_eq!(job.job.id, first.id);
    store.settle(&job, Verdict::Done).await;
    let again = session.schedule(queue, request).await.unwrap();
    assert_eq!((again.result, again.id), (ScheduleResult::Ended, first.id));
}

async fn the_queue_is_paused_and_purged(store: &Store) {
    let (session, queue) = (&store.session, &store.queue);
    store.schedule("last", Due::After(1.hours())).await;
    assert!(session.pause(queue).await.unwrap());
    assert!(session.queue(queue).await.unwrap().paused);
    let timeline = session.timeline(queue, &key("last")).await.unwrap();
    assert!(timeline.now.is_some(), "{timeline:?}");
    assert!(session.resume(queue).await.unwrap());
    session.purge(queue, "a").await.unwrap_err();
    assert_eq!(session.purge(queue, queue.as_str()).await.unwrap().changed, 1);
    let actions = session.audit(100).unwrap();
    assert!(actions.iter().any(|entry| entry.action == "purge"), "{actions:?}");
    let gone = session.job(queue, &key("last")).await.unwrap_err();
    assert!(matches!(gone, OpsError::NotFound { .. }), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_in_memory() {
    operate_on("memory:").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_in_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    operate_on(&format!("sqlite://{}/jobs.db", directory.path().display())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_in_redis() {
    let redis = dq_servers::Redis::options().start();
    operate_on(&format!("{}?response_timeout=60s", redis.url())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_in_the_keys_of_redisson() {
    let redis = dq_servers::Redis::options().start();
    let url = redis.url().replacen("redis://", "redisson://", 1);
    operate_on(&format!("{url}?response_timeout=60s")).await;
}
