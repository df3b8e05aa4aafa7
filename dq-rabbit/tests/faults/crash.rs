//! The broker is killed with SIGKILL while several clients are at work, and what they saw is judged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dq_core::{Backend, Due, LeasedJob, NewJob, Settlement, SystemClock, Verdict};
use dq_servers::RabbitMq;
use dq_testkit::faults::Recorder;

use crate::stand::{aside, by_id, claim_for, config_of, job, keyed, open, persist, until};

/// One of several clients: hands in, takes back, claims and settles, whatever the server does.
/// Each client makes its calls one after the other and repeats none: the judge knows what a lost
/// answer may mean.
async fn client(number: usize, store: Arc<dyn Backend>, stop: Arc<AtomicBool>) {
    let name = ["a", "b"][number % 2];
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let mut jobs: Vec<_> = (0..5).map(|_| job(name)).collect();
        jobs.push(keyed(name, &format!("{number}-{}", round % 7)));
        let waits = job(name);
        jobs.push(NewJob { due: Due::After(Duration::from_millis(50)), ..waits.clone() });
        jobs.push(NewJob { due: Due::After(Duration::from_millis(1_200)), ..job(name) });
        store.schedule(jobs).await.ok();
        store.cancel(&[by_id(&waits)]).await.ok();
        let claimed = claim_for(&*store, name, 7, Duration::from_millis(800)).await;
        let Ok(claimed) = claimed else { continue };
        let settle = |(place, leased): (usize, &LeasedJob)| {
            let verdict = match place % 5 {
                0 => Verdict::Retry(Due::NOW),
                1 => Verdict::Release { started: true },
                2 => Verdict::Snooze(Due::After(Duration::from_millis(1_200))),
                _ => Verdict::Done,
            };
            Settlement { lease: leased.lease(), verdict }
        };
        let settlements: Vec<_> = claimed.jobs.iter().enumerate().map(settle).collect();
        store.settle(&settlements).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_or_comes_again_over_kills() {
    let server = Arc::new(RabbitMq::start());
    let mut config = config_of(&server);
    config.response_timeout = Duration::from_secs(3);
    // Two processes, in one history.
    let clock = Arc::new(SystemClock);
    let recorder = Recorder::over(open(&config).await, clock);
    let store: Arc<dyn Backend> = Arc::clone(&recorder) as Arc<dyn Backend>;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|number| tokio::spawn(client(number, Arc::clone(&store), Arc::clone(&stop))))
        .collect();
    for pause in [1_500, 2_500] {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let server = Arc::clone(&server);
        aside(move || {
            server.kill();
            server.restart();
        })
        .await;
        persist(|| store.now()).await;
        persist(|| store.stats(&[])).await;
    }
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    until("there is enough to judge", async || {
        let history = recorder.history();
        history.done() > 20 && history.events().len() > 200
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("no client panics");
    }
    persist(|| store.stats(&[])).await;
    let breaches = persist(|| recorder.check_history()).await;
    let told: Vec<String> = breaches.iter().map(ToString::to_string).collect();
    let events = recorder.history().events().len();
    assert!(told.is_empty(), "of {events} events:\n{}", told.join("\n"));
}
