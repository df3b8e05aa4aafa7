//! Importing from another store: nothing lost and nothing doubled, whatever dies when.
#![cfg(feature = "suite")]

mod fake;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::{
    Backend, Capabilities, ClaimParams, Dq, DurationExt, ErrorKind, JobState, Limits,
    MemoryBackend, Settlement, Timestamp, Verdict, VirtualClock, Want,
};
use dq_testkit::faults::Layered;
use fake::{Death, Entry, Fake, Fate, Target, When, queue};

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const CENTURY: Duration = Duration::from_secs(99 * 365 * 86_400);

/// A store behind a client of small bulks, so that few jobs make many batches.
struct Rig {
    dq: Dq,
    clock: Arc<VirtualClock>,
    fate: Arc<Mutex<Fate>>,
}

impl Rig {
    async fn new() -> Self {
        Self::offering(Capabilities::all()).await
    }

    async fn offering(capabilities: Capabilities) -> Self {
        let clock = Arc::new(VirtualClock::new(NOW));
        let fate = Arc::new(Mutex::new(Fate::default()));
        let inner = Arc::new(MemoryBackend::new(clock.clone()));
        let target = Layered(Target { inner, fate: fate.clone(), capabilities });
        let mut limits = Limits::default();
        limits.bulk = 4;
        limits.payload = 10;
        let builder = Dq::builder().backend(Arc::new(target)).clock(clock.clone());
        Self { dq: builder.limits(limits).connect().await.unwrap(), clock, fate }
    }

    /// Runs everything that is due now, within an hour, and ever.
    async fn run_all(&self) -> Vec<String> {
        let mut ran = run_due(&self.dq).await;
        for step in [1.hours(), CENTURY] {
            self.clock.advance(step);
            ran.extend(run_due(&self.dq).await);
        }
        ran
    }
}

/// Runs what is due to its end; answers the payloads.
async fn run_due(dq: &Dq) -> Vec<String> {
    let wants = [Want { queue: queue(), max: 100, lease_for: 1.minutes() }];
    let claimed = dq.backend().claim(ClaimParams { wants: &wants, limit: 100, worker: "test" });
    let mut ran = Vec::new();
    for job in claimed.await.unwrap().jobs {
        ran.push(String::from_utf8(job.job.payload.to_vec()).unwrap());
        let settlement = Settlement { lease: job.lease(), verdict: Verdict::Done };
        dq.backend().settle(&[settlement]).await.unwrap();
    }
    ran
}

fn job(payload: &str, minutes: i64) -> Entry {
    let due = Timestamp::from_millis(NOW.as_millis() + minutes * 60_000);
    Entry { payload: payload.to_owned(), due, foreign: None }
}

fn foreign(payload: &str, again: bool) -> Entry {
    Entry { foreign: Some(again), ..job(payload, 0) }
}

/// Due, due later, two that are the same, and some that are no jobs.
fn parts() -> Vec<Vec<Entry>> {
    vec![
        vec![job("a", -5), foreign("x", true), job("b", 10), job("c", 20), job("d", 30)],
        vec![foreign("x", false), job("e", -1), job("f", 5)],
        vec![job("same", 0), job("same", 0), job("too long for it", 0), job("g", 0)],
    ]
}

const ALL: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "same", "same"];

#[track_caller]
fn assert_each_once(mut ran: Vec<String>, context: &str) {
    ran.sort();
    assert_eq!(ran, ALL, "{context}");
}

#[tokio::test]
async fn everything_arrives_at_its_time_and_what_is_no_job_stays() {
    let rig = Rig::new().await;
    let fake = Fake::new(&rig.fate, parts());
    let report = rig.dq.import(&fake).await.unwrap();
    assert_eq!((report.imported, report.resumed, report.left.total()), (9, 0, 2));
    let reasons: Vec<_> = report.left.iter().collect();
    assert!(reasons.contains(&("it is foreign", 1)), "{reasons:?}");
    assert!(reasons.iter().any(|(reason, count)| reason.contains("15 bytes") && *count == 1));
    assert!(fake.stock().journal.is_empty());
    assert_eq!(fake.stock().parts.iter().map(Vec::len).sum::<usize>(), 3);
    assert_eq!(run_due(&rig.dq).await.len(), 5, "what is due already");
    rig.clock.advance(10.minutes());
    assert_eq!(run_due(&rig.dq).await, ["f", "b"]);
    assert_eq!(rig.run_all().await, ["c", "d"]);
}

/// Dies at every step of a first import, and at every one of the next, with the target running
/// what it can in between.
#[tokio::test]
async fn a_death_between_any_two_steps_loses_and_doubles_nothing() {
    let deaths = |steps| {
        (1..=steps).flat_map(|step| [Some((step, Death::Before)), Some((step, Death::After))])
    };
    let mut survived = false;
    for first in deaths(100) {
        for second in std::iter::once(None).chain(deaths(8)) {
            for runs in [false, true] {
                let rig = Rig::new().await;
                let fake = Fake::new(&rig.fate, parts());
                let mut ran = Vec::new();
                for death in [first, second] {
                    Fate::plan(&rig.fate, death);
                    let ended = rig.dq.import(&fake).await;
                    survived |= death == first && ended.is_ok();
                    if runs {
                        ran.extend(run_due(&rig.dq).await);
                    }
                }
                Fate::plan(&rig.fate, None);
                rig.dq.import(&fake).await.unwrap();
                assert!(fake.stock().journal.is_empty());
                ran.extend(rig.run_all().await);
                assert_each_once(ran, &format!("{first:?}, {second:?}, runs: {runs}"));
            }
        }
        if survived {
            let (step, _) = first.unwrap();
            assert!(step > 20, "few steps: {step}");
            return;
        }
    }
    panic!("the first import had more steps than were tried");
}

#[tokio::test]
async fn what_others_take_meanwhile_is_theirs() {
    // Each pair of calls at which somebody takes the front entry.
    for (one, two) in (1..30).flat_map(|one| (1..30).map(move |two| (one, two))) {
        let rig = Rig::new().await;
        let fake = Fake::new(&rig.fate, parts());
        fake.stock().thefts = BTreeSet::from([one, two]);
        rig.dq.import(&fake).await.unwrap();
        let mut ran = rig.run_all().await;
        ran.append(&mut fake.stock().elsewhere);
        ran.retain(|payload| ALL.contains(&payload.as_str()));
        assert_each_once(ran, &format!("{one}, {two}"));
    }
}

#[tokio::test]
async fn an_import_that_another_has_overtaken_takes_its_job_back() {
    for when in [When::Taken, When::Parked] {
        let rig = Rig::new().await;
        let fake = Fake::new(&rig.fate, parts());
        *fake.rival.lock().unwrap() = Some((when, rig.dq.clone()));
        let report = rig.dq.import(&fake).await.unwrap();
        assert_eq!(report.imported, 0, "the other one did it all");
        let mut ran = rig.run_all().await;
        ran.append(&mut fake.stock().elsewhere);
        assert_each_once(ran, &format!("{when:?}"));
    }
}

#[tokio::test]
async fn a_released_job_that_was_moved_since_stays_where_it_was_moved_to() {
    let rig = Rig::new().await;
    let fake = Fake::new(&rig.fate, vec![vec![job("a", 10)]]);
    // open, list, take, schedule, stored, reschedule, done.
    Fate::plan(&rig.fate, Some((7, Death::Before)));
    rig.dq.import(&fake).await.unwrap_err();
    let id = *fake.stock().journal.keys().next().unwrap();
    let queue = rig.dq.queue("Q").unwrap();
    Fate::plan(&rig.fate, None);
    queue.reschedule(id, 2.hours()).await.unwrap();
    let report = rig.dq.import(&fake).await.unwrap();
    assert_eq!((report.imported, report.resumed), (0, 1));
    let view = queue.get(id).await.unwrap().unwrap();
    assert_eq!((view.state, view.job.due), (JobState::Scheduled, NOW + 2.hours()));
}

#[tokio::test]
async fn a_store_that_cannot_move_jobs_is_refused_before_anything_is_taken() {
    let mut capabilities = Capabilities::all();
    capabilities.reschedule = false;
    let rig = Rig::offering(capabilities).await;
    let fake = Fake::new(&rig.fate, parts());
    let error = rig.dq.import(&fake).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("reschedule"), "{error}");
    assert_eq!(fake.stock().parts.iter().map(Vec::len).sum::<usize>(), 12);
}
