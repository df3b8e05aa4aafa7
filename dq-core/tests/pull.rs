//! Workers that claim from a pull server, on the memory backend and a virtual clock.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::{LateAction, LatePolicy, QueueSettings};
use dq_core::{
    Backend, DeadKind, Dq, Due, DurationExt, ErrorKind, JobState, Loss, Outcome, PullLease,
    PullOutcome, PullRenewed, PullRequest, PullServer, PullSettled, Pulled, PulledJob, QueueName,
    Result,
};
use futures_util::future::join_all;
use tokio::task::JoinHandle;

use crate::runner::faulty::Faults;
use crate::runner::fixture::{Fixture, QUEUE, settle_down};

const DONE: PullOutcome = PullOutcome::Returned(Outcome::Done);

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn request(worker: &str, max: usize, wait: Duration) -> PullRequest {
    let mut request = PullRequest::new(worker, [(queue(QUEUE), max)]);
    request.wait = wait;
    request
}

struct Pull {
    fixture: Fixture,
    server: Arc<PullServer>,
}

impl Pull {
    async fn new() -> Self {
        Self::over(Fixture::new().await)
    }

    /// The queue has these settings in the configuration.
    async fn with(settings: QueueSettings) -> Self {
        let Fixture { store, clock, .. } = Fixture::new().await;
        let builder = Dq::builder().backend(store.clone()).clock(clock.clone());
        let dq = builder.defaults(settings).connect().await.unwrap();
        Self::over(Fixture::with_client(dq, store, clock))
    }

    fn over(fixture: Fixture) -> Self {
        Self { server: Arc::new(PullServer::new(&fixture.dq)), fixture }
    }

    /// Begins to wait for jobs.
    async fn wait(&self, request: PullRequest) -> JoinHandle<Result<Pulled>> {
        let server = Arc::clone(&self.server);
        let waiting = tokio::spawn(async move { server.claim(&request).await });
        settle_down().await;
        waiting
    }

    /// Claims without waiting.
    async fn now(&self, worker: &str, max: usize) -> Vec<PulledJob> {
        self.server.claim(&request(worker, max, Duration::ZERO)).await.unwrap().accept()
    }

    async fn job(&self) -> PullLease {
        self.fixture.schedule("x").await;
        self.now("w", 1).await.remove(0).lease
    }

    async fn settle(&self, lease: &PullLease, outcome: PullOutcome) -> PullSettled {
        self.server.settle(&[(lease.clone(), outcome)]).await.unwrap().remove(0).unwrap()
    }
}

fn answer(waiting: JoinHandle<Result<Pulled>>) -> Vec<PulledJob> {
    let answered = futures_util::FutureExt::now_or_never(waiting).expect("it is answered");
    answered.unwrap().unwrap().accept()
}

#[tokio::test]
async fn a_waiting_worker_gets_a_job_as_soon_as_it_is_due() {
    let pull = Pull::new().await;
    let waiting = pull.wait(request("w", 4, 20.seconds())).await;
    pull.fixture.schedule("now").await;
    settle_down().await;
    let jobs = answer(waiting);
    assert_eq!((jobs.len(), jobs[0].max_attempts), (1, 5));
    assert_eq!(pull.settle(&jobs[0].lease, DONE).await, PullSettled::Settled);

    let later = pull.fixture.queue().schedule("1", "application/json").after(5_050.millis());
    assert!(later.await.unwrap().is_stored());
    let waiting = pull.wait(request("w", 4, 20.seconds())).await;
    pull.fixture.pass(5.seconds()).await;
    assert!(!waiting.is_finished(), "it is never early");
    pull.fixture.clock.advance(50.millis());
    settle_down().await;
    assert_eq!(answer(waiting).len(), 1, "at its time, without a hint");
    assert_eq!(pull.fixture.done().await, 1);
}

#[tokio::test]
async fn a_wait_ends_without_jobs_and_a_claim_without_a_wait_asks_once() {
    let pull = Pull::new().await;
    let waiting = pull.wait(request("w", 1, 20.seconds())).await;
    pull.fixture.pass(19.seconds()).await;
    assert!(!waiting.is_finished());
    pull.fixture.pass(1.seconds()).await;
    assert_eq!(answer(waiting), []);
    assert_eq!(pull.now("w", 1).await, []);
    pull.fixture.schedule("x").await;
    assert_eq!(pull.now("w", 1).await.len(), 1);
}

#[tokio::test]
async fn a_year_is_a_minute_and_a_billion_jobs_are_a_hundred() {
    let pull = Pull::new().await;
    let waiting = pull.wait(request("w", 1, 365.days())).await;
    pull.fixture.pass(PullServer::MAX_WAIT).await;
    assert_eq!(answer(waiting), []);
    for _ in 0..=PullServer::MAX_JOBS {
        pull.fixture.schedule("x").await;
    }
    assert_eq!(pull.now("w", 1_000_000_000).await.len(), PullServer::MAX_JOBS);
    let mut long = request("w", 1, Duration::ZERO);
    long.lease = Some(365.days());
    let job = pull.server.claim(&long).await.unwrap().accept().remove(0);
    assert_eq!(job.leased.leased_until.since(pull.server.now()), *PullServer::LEASES.end());
}

#[tokio::test]
async fn workers_take_turns_and_who_has_waited_longest_comes_first() {
    let pull = Pull::new().await;
    let waiting = [
        pull.wait(request("a", 9, 1.minutes())).await,
        pull.wait(request("b", 9, 1.minutes())).await,
    ];
    let third = pull.wait(request("c", 9, 1.minutes())).await;
    // The store answers a claim only when all are scheduled.
    pull.fixture
        .dq
        .schedule_many((0..5).map(|_| pull.fixture.queue().schedule("1", "application/json")))
        .await
        .unwrap();
    settle_down().await;
    let [first, second] = waiting.map(answer);
    assert_eq!((first.len(), second.len(), answer(third).len()), (2, 2, 1));

    // Whoever asks again is last.
    let waiting = ["c", "a", "b"];
    let waiting = join_all(waiting.map(|worker| pull.wait(request(worker, 1, 1.minutes())))).await;
    for (turn, waiting) in waiting.into_iter().enumerate() {
        pull.fixture.schedule("x").await;
        settle_down().await;
        assert_eq!(answer(waiting).len(), 1, "turn {turn}");
    }
}

#[tokio::test]
async fn a_worker_gets_no_more_of_a_queue_than_it_wants() {
    let pull = Pull::new().await;
    for name in ["A", "A", "A", "B", "B"] {
        let job = pull.fixture.dq.queue(name).unwrap().schedule("1", "application/json");
        assert!(job.await.unwrap().is_stored());
    }
    let mut wanted = PullRequest::new("w", [(queue("A"), 2), (queue("B"), 2)]);
    wanted.max = 3;
    let jobs = pull.server.claim(&wanted).await.unwrap().accept();
    let of_a = jobs.iter().filter(|job| job.leased.job.queue.as_str() == "A").count();
    assert!(jobs.len() == 3 && (1..=2).contains(&of_a), "{of_a} of {}", jobs.len());
}

#[tokio::test]
async fn a_client_that_is_gone_hands_its_jobs_back_at_once() {
    let pull = Pull::new().await;
    // It leaves while it waits: the next one gets the job.
    let gone = pull.wait(request("gone", 1, 1.minutes())).await;
    let waiting = pull.wait(request("w", 1, 1.minutes())).await;
    gone.abort();
    settle_down().await;
    pull.fixture.schedule("x").await;
    settle_down().await;
    assert_eq!(answer(waiting).len(), 1);

    // It leaves before it has read its answer.
    let gone = pull.wait(request("gone", 1, 1.minutes())).await;
    pull.fixture.schedule("y").await;
    settle_down().await;
    drop(futures_util::FutureExt::now_or_never(gone).unwrap().unwrap().unwrap());
    settle_down().await;
    let again = pull.now("w", 1).await.remove(0).leased.job;
    assert_eq!((again.deliveries, again.losses), (1, 0), "as if it had not been claimed");
}

#[tokio::test]
async fn a_long_job_keeps_its_lease_by_renewals_and_loses_it_without() {
    let pull = Pull::new().await;
    pull.fixture.schedule("x").await;
    let mut short = request("w", 1, Duration::ZERO);
    short.lease = Some(10.seconds());
    let lease = pull.server.claim(&short).await.unwrap().accept().remove(0).lease;
    for _ in 0..24 {
        pull.fixture.pass(5.seconds()).await;
        let renewed = pull.server.renew(std::slice::from_ref(&lease)).await.unwrap().remove(0);
        assert_eq!(renewed, PullRenewed::Until(pull.server.now() + 10.seconds()));
        assert_eq!(pull.now("other", 1).await, []);
    }
    pull.fixture.pass(10.seconds()).await;
    let lost = pull.server.renew(std::slice::from_ref(&lease)).await.unwrap();
    assert_eq!(lost, [PullRenewed::Lost(Loss::Expired)]);
    let other = pull.now("other", 1).await.remove(0);
    assert_eq!(pull.settle(&lease, DONE).await, PullSettled::Lost(Loss::Expired));
    assert_eq!(pull.settle(&other.lease, DONE).await, PullSettled::Settled);
    assert_eq!(pull.fixture.done().await, 1);
}

#[tokio::test]
async fn each_worker_has_the_lease_it_asked_for() {
    let pull = Pull::new().await;
    let waiting = [10, 60].map(|seconds| {
        let mut request = request("w", 1, 1.minutes());
        request.lease = Some(Duration::from_secs(seconds));
        (seconds, request)
    });
    let mut answers = Vec::new();
    for (seconds, request) in waiting {
        answers.push((seconds, pull.wait(request).await));
    }
    let jobs = (0..2).map(|_| pull.fixture.queue().schedule("1", "application/json"));
    pull.fixture.dq.schedule_many(jobs).await.unwrap();
    settle_down().await;
    for (seconds, waiting) in answers {
        let until = answer(waiting)[0].leased.leased_until;
        assert_eq!(until.since(pull.server.now()), Duration::from_secs(seconds));
    }
}

#[tokio::test]
async fn a_thousand_idle_polls_cost_one_claim_a_second() {
    let pull = Pull::new().await;
    let server = &pull.server;
    let poll = async |number: usize| {
        // Each comes back as soon as its wait is over.
        let seconds = 10 + number as u64 % 20;
        loop {
            let request = request(&format!("w{number}"), 4, Duration::from_secs(seconds));
            assert!(server.claim(&request).await.unwrap().is_empty());
        }
    };
    let polls = join_all((0..1_000).map(poll));
    let minute = pull.fixture.pass(60.seconds());
    tokio::select! {
        biased;
        _ = polls => unreachable!("no poll ends"),
        () = minute => {}
    }
    let [claims, listens, others] =
        ["claim", "listen", "renew"].map(|it| pull.fixture.store.calls(it));
    assert!((55..=65).contains(&claims), "{claims} claims in a minute");
    assert!(listens <= 2 && others == 0, "{listens} subscriptions, {others} renewals");
}

#[tokio::test]
async fn without_workers_nothing_is_claimed() {
    let pull = Pull::new().await;
    assert_eq!(pull.now("w", 1).await, []);
    pull.fixture.schedule("x").await;
    pull.fixture.pass(50.seconds()).await;
    assert_eq!(pull.fixture.store.calls("claim"), 1);
    let waiting = pull.wait(request("w", 1, 1.minutes())).await;
    assert_eq!(answer(waiting).len(), 1, "although its hint came while nobody waited");
}

#[tokio::test]
async fn a_stop_answers_waiting_workers_and_keeps_leases() {
    let pull = Pull::new().await;
    let lease = pull.job().await;
    let waiting = pull.wait(request("w", 1, 1.minutes())).await;
    pull.server.stop().await;
    assert_eq!(answer(waiting), []);
    let refused = pull.server.claim(&request("w", 1, 1.minutes())).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed);
    assert_eq!(pull.settle(&lease, DONE).await, PullSettled::Settled);
    assert_eq!(pull.fixture.dq.runners().await.unwrap(), []);
}

#[tokio::test]
async fn a_lease_outlives_its_server() {
    let pull = Pull::new().await;
    let lease = serde_json::to_string(&pull.job().await).unwrap();
    let pull = Pull::over(pull.fixture);
    let lease: PullLease = serde_json::from_str(&lease).unwrap();
    let renewed = pull.server.renew(std::slice::from_ref(&lease)).await.unwrap();
    assert!(matches!(renewed[0], PullRenewed::Until(_)));
    assert_eq!(pull.settle(&lease, DONE).await, PullSettled::Settled);
}

#[tokio::test]
async fn failures_follow_the_settings_of_the_queue() {
    let pull = Pull::with(QueueSettings::new().max_attempts(2)).await;
    let failed = || PullOutcome::Failed("no luck".to_owned());
    let lease = pull.job().await;
    assert_eq!(pull.settle(&lease, failed()).await, PullSettled::Settled);
    assert_eq!(pull.settle(&lease, failed()).await, PullSettled::Settled, "the answer was lost");
    assert_eq!(pull.settle(&lease, DONE).await, PullSettled::Lost(Loss::Expired));
    let waiting = pull.wait(request("w", 1, 1.minutes())).await;
    while !waiting.is_finished() {
        pull.fixture.pass(1.seconds()).await;
    }
    let again = answer(waiting).remove(0);
    assert_eq!(again.leased.job.attempts, 1, "after its backoff");
    assert_eq!(pull.settle(&again.lease, failed()).await, PullSettled::Settled);
    assert_eq!(pull.settle(&again.lease, failed()).await, PullSettled::Settled);
    let (_, kind, message) = pull.fixture.dead_job().await;
    assert_eq!((kind, &*message), (DeadKind::Exhausted, "no luck"));
}

#[tokio::test]
async fn each_outcome_is_settled_once_and_a_bad_one_has_its_own_error() {
    let pull = Pull::new().await;
    let outcomes = [
        PullOutcome::Returned(Outcome::snooze(1.minutes())),
        PullOutcome::Returned(Outcome::throttle(1.minutes())),
        PullOutcome::Returned(Outcome::dead("no")),
        PullOutcome::Returned(Outcome::Again(Due::After(1.minutes()), "2".into())),
        PullOutcome::Released,
        PullOutcome::Returned(Outcome::retry_after(1.minutes(), "busy")),
    ];
    for _ in &outcomes {
        pull.fixture.schedule("x").await;
    }
    let leases = pull.now("w", 9).await;
    let bad = PullOutcome::Returned(Outcome::snooze((200 * 365).days()));
    let mut calls: Vec<_> =
        leases.into_iter().zip(outcomes).map(|(job, outcome)| (job.lease, outcome)).collect();
    calls.push((calls[0].0.clone(), bad));
    for _ in 0..2 {
        let settled = pull.server.settle(&calls).await.unwrap();
        let (refused, settled) = settled.split_last().unwrap();
        assert_eq!(refused.as_ref().unwrap_err().kind(), ErrorKind::InvalidInput);
        for (settled, (_, outcome)) in settled.iter().zip(&calls) {
            assert_eq!(settled.as_ref().unwrap(), &PullSettled::Settled, "{outcome:?}");
        }
    }
    let states = pull.fixture.stats().await;
    assert_eq!((states.dead, states.running), (1, 0));
}

#[tokio::test]
async fn a_late_job_and_one_that_crashes_its_workers_reach_none() {
    let late = LatePolicy::new(1.minutes(), LateAction::Skip);
    let pull = Pull::with(QueueSettings::new().late(late).max_losses(1)).await;
    pull.fixture.schedule("late").await;
    pull.fixture.clock.advance(2.minutes());
    assert_eq!(pull.now("w", 1).await, []);
    settle_down().await;
    assert_eq!(pull.fixture.stats().await.totals.unwrap().skipped, 1);

    pull.job().await;
    pull.fixture.clock.advance(31.seconds());
    assert_eq!(pull.now("w", 1).await, []);
    settle_down().await;
    assert_eq!(pull.fixture.dead_job().await.1, DeadKind::Lost);
}

#[tokio::test]
async fn a_late_job_moves_to_another_queue() {
    let late = LatePolicy::new(1.minutes(), LateAction::Queue(queue("LATE")));
    let pull = Pull::with(QueueSettings::new().late(late)).await;
    pull.fixture.schedule("late").await;
    pull.fixture.clock.advance(2.minutes());
    assert_eq!(pull.now("w", 1).await, []);
    settle_down().await;
    let moved = pull.fixture.dq.queue("LATE").unwrap().browse(JobState::Ready).await.unwrap();
    assert_eq!((moved.jobs.len(), pull.fixture.stats().await.stored()), (1, 0));
}

#[tokio::test]
async fn workers_are_listed_with_the_server_and_its_jobs() {
    let pull = Pull::new().await;
    let lease = pull.job().await;
    let _waiting = pull.wait(request("v", 3, 1.minutes())).await;
    pull.fixture.pass(16.seconds()).await;
    let listed = pull.fixture.dq.runners().await.unwrap().remove(0);
    let info = listed.info.unwrap();
    assert_eq!((&*listed.name, info.running, info.concurrency), (pull.server.name(), 1, 4));
    assert_eq!(info.free_slots(&queue(QUEUE)), Some(3));
    let workers: Vec<_> = info.workers.iter().map(|it| (&*it.name, it.running)).collect();
    assert_eq!(workers, [("v", 0), ("w", 1)]);
    let job = info.workers[1].jobs[0];
    assert_eq!(info.worker_of(job), Some("w"));
    assert_eq!(pull.server.worker_of(&queue(QUEUE), job).as_deref(), Some("w"));
    assert_eq!(pull.settle(&lease, DONE).await, PullSettled::Settled);
    assert_eq!(pull.server.worker_of(&queue(QUEUE), job), None);

    pull.fixture.pass(3.minutes()).await;
    assert_eq!(pull.fixture.dq.runners().await.unwrap(), [], "nobody has called for a minute");
}

#[tokio::test]
async fn a_store_that_is_away_is_an_error_and_its_return_is_noticed() {
    let pull = Pull::over(Fixture::faulty(Faults { is_away: true, ..Faults::default() }).await);
    let once = pull.server.claim(&request("w", 1, Duration::ZERO)).await;
    assert_eq!(once.unwrap_err().kind(), ErrorKind::Unavailable);
    let waiting = pull.wait(request("w", 1, 5.seconds())).await;
    pull.fixture.pass(5.seconds()).await;
    let failed = futures_util::FutureExt::now_or_never(waiting).unwrap().unwrap();
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unavailable, "it is not an empty answer");
    let waiting = pull.wait(request("w", 1, 1.minutes())).await;
    pull.fixture.store.change(|faults| faults.is_away = false);
    pull.fixture.schedule("x").await;
    pull.fixture.pass(10.seconds()).await;
    assert_eq!(answer(waiting).len(), 1);
}

#[tokio::test]
async fn a_store_without_limits_refuses_claims_from_a_limited_queue() {
    let pull = Pull::with(QueueSettings::new().max_running(1)).await;
    pull.fixture.store.change(|faults| faults.lacks_flow = true);
    let error = pull.server.claim(&request("w", 1, Duration::ZERO)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("max_running 1"), "{error}");
}

#[tokio::test]
async fn no_job_runs_before_its_queues_limits_are_declared() {
    let pull = Pull::with(QueueSettings::new().max_running(1)).await;
    pull.fixture.store.change(|faults| faults.operate_is_forbidden = true);
    pull.fixture.schedule("a").await;
    pull.fixture.schedule("b").await;
    for _ in 0..3 {
        let claimed = pull.server.claim(&request("w", 2, Duration::ZERO)).await;
        assert_eq!(claimed.unwrap_err().kind(), ErrorKind::Config);
        pull.fixture.pass(10.seconds()).await;
    }
    pull.fixture.store.change(|faults| faults.operate_is_forbidden = false);
    pull.fixture.pass(10.seconds()).await;
    assert_eq!(pull.now("w", 2).await.len(), 1);
}

#[tokio::test]
async fn a_closed_store_ends_the_wait() {
    let pull = Pull::new().await;
    let waiting = pull.wait(request("w", 1, 1.minutes())).await;
    pull.fixture.dq.close().await.unwrap();
    pull.fixture.pass(2.seconds()).await;
    let failed = futures_util::FutureExt::now_or_never(waiting).unwrap().unwrap();
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn jobs_of_a_drained_store_are_claimed_and_settled_there() {
    let old = Fixture::new().await;
    let pull = Pull::over(Fixture::draining(&old).await);
    old.schedule("old").await;
    let job = pull.now("w", 5).await.remove(0);
    assert_eq!(pull.settle(&job.lease, DONE).await, PullSettled::Settled);
    assert_eq!(old.done().await, 1);
}

#[tokio::test]
async fn bad_requests_are_refused_before_the_store_is_called() {
    let pull = Pull::new().await;
    let many = (0..=PullServer::MAX_QUEUES).map(|number| (queue(&format!("Q{number}")), 1));
    let mut nothing = request("w", 1, Duration::ZERO);
    nothing.max = 0;
    for bad in [
        request("", 1, Duration::ZERO),
        request("a\nb", 1, Duration::ZERO),
        request(&"w".repeat(129), 1, Duration::ZERO),
        request("w", 0, Duration::ZERO),
        nothing,
        PullRequest::new("w", []),
        PullRequest::new("w", [(queue("Q"), 1), (queue("Q"), 2)]),
        PullRequest::new("w", [(queue("dq.schedules"), 1)]),
        PullRequest::new("w", many),
    ] {
        let error = pull.server.claim(&bad).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.remedy_text().is_some(), "{error}");
    }
    assert_eq!(pull.fixture.store.calls("claim"), 0);
    assert!(Backend::now(&**pull.fixture.dq.backend()).await.is_ok());
}
