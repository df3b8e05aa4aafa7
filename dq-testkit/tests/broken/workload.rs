//! A random workload: clients share a store and a virtual clock, so that many calls overlap.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Backend, BrowseParams, ClaimParams, Clock, DeadKind, DeadReason, Due, Entropy, JobKey, JobRef,
    JobState, NewJob, OnConflict, OnRunning, Operation, QueueName, Renewal, Reschedule, Settlement,
    Target, Timestamp, Verdict, VirtualClock, Want,
};

struct Dice(Entropy);

impl Dice {
    fn below(&self, bound: u64) -> u64 {
        u64::try_from(self.0.bits() % u128::from(bound)).unwrap_or(0)
    }

    fn millis(&self, bound: u64) -> Duration {
        Duration::from_millis(self.below(bound))
    }
}

const CLIENTS: u64 = 4;
const STEPS: usize = 150;
const MIN_LEASE: Duration = Duration::from_millis(1);

/// Runs all clients. Each step advances the clock by up to 20 ms and makes one random call. Due
/// times and leases are at most 200 ms, so that many leases expire.
pub(crate) async fn run(backend: Arc<dyn Backend>, clock: Arc<VirtualClock>, seed: u64) {
    let clock = Arc::new(Mutex::new(clock));
    let clients = (0..CLIENTS).map(|number| {
        let (backend, clock) = (backend.clone(), clock.clone());
        tokio::spawn(client(backend, clock, Entropy::seeded(seed * CLIENTS + number)))
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("no client panics");
    }
}

/// Makes random calls. The mutex makes advancing and reading the clock atomic, so that a client
/// reads its own time.
async fn client(backend: Arc<dyn Backend>, clock: Arc<Mutex<Arc<VirtualClock>>>, entropy: Entropy) {
    let dice = Dice(entropy);
    let queue = QueueName::new("q").expect("a valid name");
    let mut jobs: Vec<NewJob> = Vec::new();
    let mut scheduled = Vec::new();
    let mut leases = Vec::new();
    for _ in 0..STEPS {
        let now = {
            let clock = clock.lock().expect("no client panics");
            clock.advance(dice.millis(20));
            clock.now()
        };
        tokio::task::yield_now().await;
        // The recorder records errors, too. The numbers are weights in tenths. A step without a
        // lease or job to choose from changes a job or does nothing.
        match dice.below(10) {
            0..=2 => {
                let job = match dice.below(8) {
                    // A repeated call.
                    0 if !jobs.is_empty() => jobs[dice.below(jobs.len() as u64) as usize].clone(),
                    _ => job(&dice, &queue, now),
                };
                scheduled.push(target(&job));
                jobs.push(job.clone());
                let _ = backend.schedule(vec![job]).await;
            }
            3..=5 => {
                let want = Want::new(queue.clone(), 2, dice.millis(150) + MIN_LEASE);
                let wants = [want];
                let params = ClaimParams::new(&wants, 2, "client");
                if let Ok(claimed) = backend.claim(params).await {
                    leases.extend(claimed.jobs.iter().map(dq_core::LeasedJob::lease));
                }
            }
            6 | 7 if !leases.is_empty() => {
                let at = dice.below(leases.len() as u64) as usize;
                // Some leases are settled twice, and some after they expired.
                let lease =
                    if dice.below(5) == 0 { leases[at].clone() } else { leases.swap_remove(at) };
                let verdict = verdict(&dice, now);
                let _ = backend.settle(&[Settlement::new(lease, verdict)]).await;
            }
            8 if !leases.is_empty() => {
                let lease = leases[dice.below(leases.len() as u64) as usize].clone();
                let lease_for = dice.millis(150) + MIN_LEASE;
                let _ = backend.renew(&[Renewal::new(lease, lease_for)]).await;
            }
            _ if !scheduled.is_empty() => {
                let target = scheduled[dice.below(scheduled.len() as u64) as usize].clone();
                change_job(&*backend, &dice, &queue, target, now).await;
            }
            _ => {}
        }
    }
}

fn job(dice: &Dice, queue: &QueueName, now: Timestamp) -> NewJob {
    let key = (dice.below(2) == 0).then(|| format!("k{}", dice.below(4)));
    let id = dice.0.job_id(now);
    let policy = [OnConflict::Keep, OnConflict::Replace][dice.below(2) as usize];
    let payload = id.to_string().into();
    let mut job = NewJob::new(id, queue.clone(), now + dice.millis(200), payload);
    job.key = key.map(|key| JobKey::new(key).expect("a valid key"));
    if dice.below(4) == 0 {
        job.on_running = OnRunning::Detach;
    }
    if dice.below(4) == 0 {
        job.remember = dice.millis(2_000);
    }
    job.on_conflict(policy)
}

fn target(job: &NewJob) -> Target {
    job.key.clone().map_or(Target::Id(job.id), Target::Key)
}

fn verdict(dice: &Dice, now: Timestamp) -> Verdict {
    let due = Due::At(now + dice.millis(100));
    match dice.below(10) {
        0 => Verdict::skip("a reason"),
        1 | 2 => Verdict::retry(due, "a reason"),
        3 => Verdict::Snooze(due),
        4 => {
            let reason = DeadReason::new(DeadKind::Rejected, "no");
            Verdict::Dead { reason, failed: true }
        }
        5 => Verdict::Release { started: dice.below(2) == 0 },
        6 | 7 => Verdict::Again { due, payload: Bytes::from_static(b"next") },
        _ => Verdict::Done,
    }
}

async fn change_job(
    backend: &dyn Backend,
    dice: &Dice,
    queue: &QueueName,
    target: Target,
    now: Timestamp,
) {
    let job = JobRef::new(queue.clone(), target);
    match dice.below(12) {
        0..=3 => {
            let due = Due::At(now + dice.millis(150));
            let _ = backend.reschedule(&[Reschedule { job, due }]).await;
        }
        4 | 5 => {
            let dead = BrowseParams::new(queue, JobState::Dead).limit(1_000);
            let Ok(dead) = backend.browse(dead).await else { return };
            let jobs: Vec<_> = dead.jobs.iter().map(|view| view.job.id).collect();
            let operation = match dice.below(2) {
                0 => Operation::Replay { queue, jobs: &jobs, due: Due::NOW },
                _ => Operation::Remove { queue, jobs: &jobs },
            };
            let _ = backend.operate(operation).await;
        }
        _ => {
            let _ = backend.cancel(&[job]).await;
        }
    }
}
