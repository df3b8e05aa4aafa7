//! Imports from another store lose and duplicate no job, wherever a process crashes.

mod source;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::common::offering::Offering;
use crate::common::stepped::Stepped;
use dq_core::{
    Backend, Dq, DurationExt, ErrorKind, ImportReport, JobState, Limits, MemoryBackend, Result,
    Timestamp, VirtualClock,
};
use dq_testkit::faults::{Crash, CrashPoint, CrashingSource};
use dq_testkit::fixture::run_due;
use source::{Entry, MemorySource, StartAt};

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
/// Longer than the ten years for which an import parks a job in the target, so that a job left
/// parked runs too.
const CENTURY: Duration = Duration::from_secs(99 * 365 * 86_400);

/// A client with a target store. Its batches are small, so that few jobs fill several.
struct Fixture {
    dq: Dq,
    clock: Arc<VirtualClock>,
    crash_point: CrashPoint,
}

impl Fixture {
    async fn new() -> Self {
        Self::over(|store| store).await
    }

    async fn over(target: impl FnOnce(Arc<dyn Backend>) -> Arc<dyn Backend>) -> Self {
        let clock = Arc::new(VirtualClock::new(NOW));
        let crash_point = CrashPoint::default();
        let store = Arc::new(MemoryBackend::new(clock.clone()));
        let target = target(Stepped::over(store, &crash_point, false));
        let mut limits = Limits::default();
        limits.bulk = 4;
        // Too short for one payload in the source.
        limits.payload = 10;
        let builder = Dq::builder().backend(target).clock(clock.clone());
        Self { dq: builder.limits(limits).connect().await.unwrap(), clock, crash_point }
    }

    async fn import(&self, source: &MemorySource) -> Result<ImportReport> {
        self.dq.import(CrashingSource::new(source, &self.crash_point)).await
    }

    async fn run_due(&self) -> Vec<String> {
        run_due(&**self.dq.backend(), "Q").await
    }

    /// Runs everything that is due now, within an hour, or within a century.
    async fn run_all(&self) -> Vec<String> {
        let mut ran = self.run_due().await;
        for step in [1.hours(), CENTURY] {
            self.clock.advance(step);
            ran.extend(self.run_due().await);
        }
        ran
    }
}

fn job(payload: &str, minutes: i64) -> Entry {
    let due = Timestamp::from_millis(NOW.as_millis() + minutes * 60_000);
    Entry { payload: payload.to_owned(), due, is_job: true, in_later_part: false }
}

fn not_a_job(payload: &str, in_later_part: bool) -> Entry {
    Entry { is_job: false, in_later_part, ..job(payload, 0) }
}

/// Jobs due now and later, two equal ones, one too long, and a non-job in two parts.
fn parts() -> Vec<Vec<Entry>> {
    vec![
        vec![job("a", -5), not_a_job("x", true), job("b", 10), job("c", 20), job("d", 30)],
        vec![not_a_job("x", false), job("e", -1), job("f", 5)],
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
async fn jobs_are_imported_with_their_due_times_and_other_entries_stay() {
    let fixture = Fixture::new().await;
    let source = MemorySource::new(parts());
    let report = fixture.import(&source).await.unwrap();
    assert_eq!((report.imported, report.resumed, report.rejected.total()), (9, 0, 2));
    let reasons: Vec<_> = report.rejected.iter().collect();
    assert!(reasons.contains(&("it is not a job", 1)), "{reasons:?}");
    assert!(reasons.iter().any(|(reason, count)| reason.contains("15 bytes") && *count == 1));
    assert!(source.contents().journal.is_empty());
    // The non-job in both parts, and the long payload.
    assert_eq!(source.contents().parts.iter().map(Vec::len).sum::<usize>(), 3);
    assert_eq!(fixture.run_due().await.len(), 5, "jobs that are due already");
    fixture.clock.advance(10.minutes());
    assert_eq!(fixture.run_due().await, ["f", "b"]);
    assert_eq!(fixture.run_all().await, ["c", "d"]);
}

/// The first import crashes at every step. The second resumes its journal and crashes at each of
/// its first eight steps. Due jobs run in between, or not.
#[tokio::test]
async fn a_crash_at_any_step_loses_and_duplicates_no_job() {
    let crashes = |steps| {
        (1..=steps).flat_map(|step| [Some((step, Crash::Before)), Some((step, Crash::After))])
    };
    let mut first_completed = false;
    for first in crashes(100) {
        for second in std::iter::once(None).chain(crashes(8)) {
            for runs in [false, true] {
                let fixture = Fixture::new().await;
                let source = MemorySource::new(parts());
                let mut ran = Vec::new();
                for crash in [first, second] {
                    fixture.crash_point.set(crash);
                    let ended = fixture.import(&source).await;
                    fixture.crash_point.set(None);
                    first_completed |= crash == first && ended.is_ok();
                    if runs {
                        ran.extend(fixture.run_due().await);
                    }
                }
                fixture.import(&source).await.unwrap();
                assert!(source.contents().journal.is_empty());
                ran.extend(fixture.run_all().await);
                assert_each_once(ran, &format!("{first:?}, {second:?}, runs: {runs}"));
            }
        }
        if first_completed {
            let (step, _) = first.unwrap();
            assert!(step > 20, "an import has only {step} steps");
            return;
        }
    }
    panic!("the first import has more steps than the test covers");
}

#[tokio::test]
async fn entries_that_another_consumer_takes_are_not_imported() {
    // Before each combination of two calls, another consumer takes the first entry.
    for (first, second) in (1..30).flat_map(|first| (1..30).map(move |n| (first, n))) {
        let fixture = Fixture::new().await;
        let source = MemorySource::new(parts());
        source.contents().competing_takes = BTreeSet::from([first, second]);
        fixture.import(&source).await.unwrap();
        let mut ran = fixture.run_all().await;
        ran.append(&mut source.contents().taken_by_others);
        ran.retain(|payload| ALL.contains(&payload.as_str()));
        assert_each_once(ran, &format!("{first}, {second}"));
    }
}

#[tokio::test]
async fn an_import_overtaken_by_a_concurrent_one_duplicates_no_job() {
    for point in [StartAt::BeforeSchedule, StartAt::BeforeStored] {
        let fixture = Fixture::new().await;
        let source = MemorySource::new(parts());
        *source.concurrent_import.lock().unwrap() = Some((point, fixture.dq.clone()));
        let report = fixture.import(&source).await.unwrap();
        assert_eq!(report.imported, 0, "the other import took every job");
        let mut ran = fixture.run_all().await;
        ran.append(&mut source.contents().taken_by_others);
        assert_each_once(ran, &format!("{point:?}"));
    }
}

#[tokio::test]
async fn a_job_that_was_rescheduled_after_a_crash_keeps_its_new_due_time() {
    let fixture = Fixture::new().await;
    let source = MemorySource::new(vec![vec![job("a", 10)]]);
    // Steps: entries, list, take, schedule, mark_stored, reschedule, remove.
    fixture.crash_point.set(Some((7, Crash::Before)));
    fixture.import(&source).await.unwrap_err();
    let preview = fixture.dq.preview_import(&source).await.unwrap();
    assert_eq!((preview.importable, preview.resumable), (0, 1));
    let id = *source.contents().journal.keys().next().unwrap();
    let queue = fixture.dq.queue("Q").unwrap();
    fixture.crash_point.set(None);
    let _ = queue.reschedule(id, 2.hours()).await.unwrap();
    let report = fixture.import(&source).await.unwrap();
    assert_eq!((report.imported, report.resumed), (0, 1));
    let view = queue.get(id).await.unwrap().unwrap();
    assert_eq!((view.state, view.job.due), (JobState::Scheduled, NOW + 2.hours()));
}

#[tokio::test]
async fn an_import_is_not_continued_in_a_store_that_lacks_its_jobs() {
    // The first store has the job, parked or released. The second has neither.
    for crash in [(6, Crash::Before), (7, Crash::Before)] {
        let (first, second) = (Fixture::new().await, Fixture::new().await);
        let source = MemorySource::new(vec![vec![job("a", 10)]]);
        // Steps: entries, list, take, schedule, mark_stored, reschedule, remove.
        first.crash_point.set(Some(crash));
        first.import(&source).await.unwrap_err();
        let error = second.import(&source).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains("is not in this store"), "{error}");
        assert_eq!(source.contents().journal.len(), 1, "the first store can go on");

        first.crash_point.set(None);
        assert_eq!(first.import(&source).await.unwrap().resumed, 1);
        first.clock.advance(10.minutes());
        assert_eq!((first.run_due().await, second.run_all().await), (vec!["a".into()], vec![]));
    }
}

#[tokio::test]
async fn a_target_without_reschedule_is_refused_before_anything_is_taken() {
    let without_reschedule = |store: Arc<dyn Backend>| -> Arc<dyn Backend> {
        let mut capabilities = store.capabilities();
        capabilities.reschedule = false;
        Arc::new(Offering { store, capabilities })
    };
    let fixture = Fixture::over(without_reschedule).await;
    let source = MemorySource::new(parts());
    let error = fixture.import(&source).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("reschedule"), "{error}");
    assert_eq!(
        source.contents().parts.iter().map(Vec::len).sum::<usize>(),
        12,
        "all entries are left"
    );
}
