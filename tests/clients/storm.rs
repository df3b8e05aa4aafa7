//! Workers of three languages on the same queues, while workers, the server and the store are
//! killed, and workers suspended for longer than their leases.
//!
//! `DQ_STORM_SEED` repeats a storm's choices, though not their times; `DQ_STORM_SECONDS` makes it
//! longer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dq::{Entropy, JobId};
use dq_servers::Redis;
use dq_testkit::trace::{ObservedCall, ObservedVerdict, Trace};
use tokio::task::spawn_blocking;

use crate::programs::{Language, Starter, Workers};
use crate::recorder::{LEASE, Recorder, nanos};
use crate::runs::{Notes, Runs};
use crate::server::{MAX_WAIT, Server, schedule, wait_until_done, work};

const LANGUAGES: [Language; 3] = [Language::Python, Language::TypeScript, Language::Java];

const PROCESSES_OF_EACH: usize = 2;

struct Random(Entropy);

impl Random {
    fn new(seed: u64) -> Self {
        Self(Entropy::seeded(seed))
    }

    fn below(&self, limit: u64) -> u64 {
        self.0.bits() as u64 % limit
    }

    fn millis(&self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_loses_no_job_and_leases_none_twice() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let seed =
        number("DQ_STORM_SEED").unwrap_or_else(|| Entropy::from_os().bits() as u64 % 1_000_000);
    let duration = Duration::from_secs(number("DQ_STORM_SECONDS").unwrap_or(20));
    println!("DQ_STORM_SEED={seed}");

    let notes = Arc::new(Notes::new(&LANGUAGES));
    let scene = spawn_blocking(|| {
        let redis = Redis::options().aof().start();
        (Server::start(&redis.url()), redis)
    });
    let (server, redis) = scene.await.unwrap();
    let address = server.address.clone();
    let recorder = Recorder::start(&address).await;
    let proxy = recorder.address.clone();
    let starters = LANGUAGES.map(|language| {
        let (proxy, notes) = (proxy.clone(), Arc::clone(&notes));
        spawn_blocking(move || Starter::build(language, &proxy, &notes, LEASE, (1, 4)))
    });
    let mut victims = vec![Victim::Server(server), Victim::Store(redis)];
    for starter in starters {
        let starter = starter.await.unwrap();
        let start = || Victim::Workers(starter.start(), starter.clone());
        victims.extend(std::iter::repeat_with(start).take(PROCESSES_OF_EACH));
    }

    let end = Instant::now() + duration;
    let scheduling =
        tokio::spawn(schedule_jobs(Arc::clone(&recorder), address.clone(), Random::new(seed), end));
    let faults = spawn_blocking(move || break_and_mend(victims, Random::new(seed ^ 1), end));
    let victims = faults.await.unwrap();
    let jobs = scheduling.await.unwrap();
    wait_until_done(&address, jobs).await;
    drop(victims);

    let (trace, runs) = (recorder.trace(), notes.read());
    let (count, calls, done) = (runs.len(), trace.events().len(), trace.done_count());
    println!("{jobs} jobs, {count} runs, {calls} calls, {done} seen done");
    let violations = trace.check(&[]);
    assert!(violations.is_empty(), "{violations:#?}");
    // The answers of some settlements were lost.
    assert!(trace.done_count() > jobs / 2, "the trace proves little");
    check_runs(&trace, &runs);
}

async fn schedule_jobs(
    recorder: Arc<Recorder>,
    server: String,
    random: Random,
    end: Instant,
) -> usize {
    let mut jobs = 0;
    while Instant::now() < end {
        let queue = ["A", "B"][random.below(2) as usize];
        let plan = ["done", "done", "fail", "again"][random.below(4) as usize];
        // One in 20 takes longer than a lease.
        let millis = if random.below(20) == 0 { 3_000 } else { 10 + random.below(300) };
        let (payload, delay) = (work(millis, plan), random.below(1_500));
        let invoked = nanos();
        let id = schedule(&server, queue, payload.clone(), delay).await;
        recorder.scheduled(invoked, (&id, queue), &payload, delay);
        jobs += 1;
        tokio::time::sleep(random.millis(5, 30)).await;
    }
    jobs
}

enum Victim {
    Server(Server),
    Store(Redis),
    Workers(Workers, Starter),
}

enum Fault {
    Killed,
    Suspended,
}

impl Victim {
    /// Returns the fault, and for how long it lasts.
    fn damage(&mut self, random: &Random) -> (Fault, Duration) {
        match self {
            Self::Server(server) => server.kill(),
            Self::Store(redis) => redis.kill(),
            Self::Workers(workers, _) if random.below(2) == 0 => {
                workers.signal("STOP");
                return (Fault::Suspended, LEASE + random.millis(100, 2_000));
            }
            Self::Workers(workers, _) => workers.signal("KILL"),
        }
        (Fault::Killed, random.millis(10, 800))
    }

    /// Returns whether it could be mended: the server does not start while the store is away.
    fn mend(&mut self, fault: &Fault) -> bool {
        match (self, fault) {
            (Self::Server(server), _) => return server.try_restart().is_ok(),
            (Self::Store(redis), _) => redis.restart(),
            (Self::Workers(workers, _), Fault::Suspended) => workers.signal("CONT"),
            (Self::Workers(workers, starter), Fault::Killed) => *workers = starter.start(),
        }
        true
    }
}

/// Damages one victim after the other, several of them at a time, until `end`; then mends all.
fn break_and_mend(mut victims: Vec<Victim>, random: Random, end: Instant) -> Vec<Victim> {
    let mut faults: HashMap<usize, (Fault, Instant)> = HashMap::new();
    let mut next = Instant::now();
    while Instant::now() < end || !faults.is_empty() {
        let now = Instant::now();
        assert!(now < end + MAX_WAIT, "not all is mended");
        faults.retain(|index, (fault, until)| *until > now || !victims[*index].mend(fault));
        if next <= now && now < end {
            next = now + random.millis(100, 900);
            let index = random.below(victims.len() as u64) as usize;
            faults.entry(index).or_insert_with(|| {
                let (fault, duration) = victims[index].damage(&random);
                (fault, now + duration)
            });
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    victims
}

/// Handlers run with a lease and not early, and what is settled as done has run to its end.
fn check_runs(trace: &Trace, runs: &Runs) {
    let mut due: HashMap<(JobId, u64), _> = HashMap::new();
    for event in trace.events() {
        match &event.call {
            ObservedCall::Claim { job, token, due: time, .. } => {
                due.insert((*job, *token), *time);
            }
            ObservedCall::Settle {
                job,
                token,
                verdict: ObservedVerdict::Done | ObservedVerdict::Again(..),
                ..
            } => {
                let run = runs.get(&(*job, *token));
                let has_ended = run.is_some_and(|run| run.end.is_some());
                assert!(has_ended, "job {job}, token {token} is settled, and has run: {run:?}");
            }
            _ => {}
        }
    }
    for ((job, token), run) in runs {
        let due = due.get(&(*job, *token)).expect("a run has a lease");
        assert!(run.start >= *due, "job {job} is due at {due} and has run: {run:?}");
    }
}
