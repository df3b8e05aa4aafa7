//! Imports jobs from other stores, each exactly once: [`Dq::import`](crate::Dq::import).
//!
//! No atomic step spans two stores, and this process may die at any time. The target may run a job
//! once it is due, and other clients may take from the source meanwhile. So each job passes through
//! a journal in the *source*, and is first *parked* in the target:
//!
//! | | step | where the job is if the process dies after it |
//! |---|---|---|
//! | 1 | the source lists entries | in the source |
//! | 2 | the source atomically moves an entry into the journal, as *taken* with a new job id | only in the journal; no other client can take it |
//! | 3 | the target stores the job under that id, parked: due in ten years | in both; the target cannot run it yet |
//! | 4 | the journal marks the entry as *stored* | in both; it is never scheduled again |
//! | 5 | the target reschedules the job to its own due time | in the target, which may have run it |
//! | 6 | the journal removes the entry | in the target |
//!
//! An import starts with the journal's entries. A *taken* entry continues at step 3, which can
//! repeat under the same id while the job cannot have run. A *stored* entry continues at step 5,
//! which changes nothing if the job has run. So no job is doubled or lost.
//!
//! Ids are new, not derived from entries, because equal entries are different jobs.
//!
//! Two concurrent imports from one source finish each other's work. If step 4 finds that the other
//! import has finished an entry, it cancels the job it just parked, unless the other one released
//! that very job. A kill at this point leaves a parked job, so run one import at a time.

mod report;
mod source;

use std::time::Duration;

pub use report::{ImportPreview, ImportReport, ReasonCounts};
pub use source::{
    ImportJob, ImportJournal, ImportSource, JournalEntry, SourceEntry, Stage, TakeRequest,
};

use super::dq::Dq;
use crate::backend::{Backend, Reschedule};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Due, JobId, JobView, NewJob};

/// Entries per call.
const BATCH: usize = 100;

/// How far ahead a parked job is due: it must not run yet.
const PARK_FOR: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A preview counts at most this many resumable entries.
const MAX_RESUMABLE: usize = 1_000;

/// Scans in a row that may take nothing. High, because fast consumers of the source win several by
/// chance.
const MAX_FAILED_SCANS: u32 = 100;

/// One import.
pub(super) struct Import<'a> {
    dq: &'a Dq,
    source: &'a dyn ImportSource,
    report: ImportReport,
}

impl<'a> Import<'a> {
    pub(super) fn new(dq: &'a Dq, source: &'a dyn ImportSource) -> Self {
        Self { dq, source, report: ImportReport::default() }
    }

    pub(super) async fn run(mut self) -> Result<ImportReport> {
        let target = self.dq.backend();
        self.source.check_target(target.name())?;
        let capabilities = target.capabilities();
        for (supported, feature) in [
            (capabilities.reschedule, "reschedule"),
            (capabilities.cancel, "cancel"),
            (capabilities.browse, "reading single jobs"),
        ] {
            if !supported {
                return Err(Error::unsupported(target.name(), feature)
                    .remedy("an import needs it to run no job twice; choose another backend"));
            }
        }
        let horizon = self.dq.shared().limits.horizon;
        if horizon < PARK_FOR {
            return Err(Error::new(
                ErrorKind::Config,
                format!(
                    "due times are limited to {} days ahead, less than the ten years for which an \
                     import parks jobs",
                    horizon.as_secs() / 86_400
                ),
            )
            .remedy(
                "raise `Limits::horizon`, which is given to `Dq::builder().limits(…)`: a job that \
                 comes due while it is parked could run twice",
            ));
        }
        self.resume().await?;
        for part in 0..self.source.parts() {
            self.import_part(part).await?;
        }
        Ok(self.report)
    }

    pub(super) async fn preview(&self) -> Result<ImportPreview> {
        self.source.check_target(self.dq.backend().name())?;
        let mut preview = ImportPreview {
            resumable: self.source.journal().entries(MAX_RESUMABLE).await?.len() as u64,
            ..ImportPreview::default()
        };
        for part in 0..self.source.parts() {
            let mut offset = 0;
            loop {
                let listed = self.source.list(part, offset, self.batch()).await?;
                if listed.is_empty() {
                    break;
                }
                offset += listed.len() as u64;
                // The later part counts its entries itself.
                for entry in listed.into_iter().filter(|entry| !entry.in_later_part) {
                    match entry.job.and_then(|job| self.check_limits(self.dq.new_id(), job)) {
                        Ok(_) => preview.importable += 1,
                        Err(reason) => preview.rejected.add(reason),
                    }
                }
            }
        }
        Ok(preview)
    }

    /// Finishes what interrupted imports left in the journal.
    async fn resume(&mut self) -> Result<()> {
        loop {
            let entries = self.source.journal().entries(self.batch()).await?;
            if entries.is_empty() {
                return Ok(());
            }
            self.report.resumed += entries.len() as u64;
            self.resume_entries(entries).await?;
        }
    }

    /// Scans a part until everything importable is taken.
    async fn import_part(&mut self, part: usize) -> Result<()> {
        let mut failed_scans = 0;
        loop {
            let scan = self.scan(part).await?;
            // If other clients removed entries before the offset, the scan skipped some. So scan
            // again after taking entries.
            let may_have_missed = scan.taken > 0 && scan.offset > 0;
            if !may_have_missed && scan.not_taken == 0 {
                self.report.rejected.merge(scan.rejected);
                return Ok(());
            }
            failed_scans = if scan.taken == 0 { failed_scans + 1 } else { 0 };
            if failed_scans == MAX_FAILED_SCANS {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "{} entries of {} were listed {MAX_FAILED_SCANS} times and could not be taken",
                        scan.not_taken,
                        self.source.name()
                    ),
                )
                .remedy("other programs keep changing them; import again"));
            }
        }
    }

    /// Imports from front to end. Taken entries leave the listing, so the offset only counts
    /// entries that stay.
    async fn scan(&mut self, part: usize) -> Result<Scan> {
        let mut scan = Scan::default();
        loop {
            let listed = self.source.list(part, scan.offset, self.batch()).await?;
            if listed.is_empty() {
                return Ok(scan);
            }
            let mut requests = Vec::with_capacity(listed.len());
            for SourceEntry { token, job, in_later_part } in listed {
                let id = self.dq.new_id();
                match job.and_then(|job| self.check_limits(id, job)) {
                    Ok(job) => requests.push(TakeRequest { id, token, job }),
                    Err(reason) => {
                        scan.offset += 1;
                        if !in_later_part {
                            scan.rejected.add(reason);
                        }
                    }
                }
            }
            if !requests.is_empty() {
                self.import_entries(part, requests, &mut scan).await?;
            }
        }
    }

    /// Steps 2 to 6 for these entries.
    async fn import_entries(
        &mut self,
        part: usize,
        requests: Vec<TakeRequest>,
        scan: &mut Scan,
    ) -> Result<()> {
        let results = self.source.take(part, &requests).await?;
        let requested = requests.len();
        let taken: Vec<JournalEntry> = requests
            .into_iter()
            .zip(results)
            .filter(|(_, taken)| *taken)
            .map(|(TakeRequest { id, job, .. }, _)| JournalEntry { id, job, stage: Stage::Taken })
            .collect();
        let not_taken = (requested - taken.len()) as u64;
        scan.not_taken += not_taken;
        // An entry with a changed due time is still listed; the next scan requests it again.
        scan.offset += not_taken;
        scan.taken += taken.len() as u64;
        let stored = self.park(taken).await?;
        self.report.imported += stored.len() as u64;
        self.release(stored).await
    }

    /// Steps 3 and 4. Returns the entries to release, without those that another import has
    /// finished.
    async fn park(&self, taken: Vec<JournalEntry>) -> Result<Vec<JournalEntry>> {
        if taken.is_empty() {
            return Ok(taken);
        }
        let parked = Due::After(PARK_FOR);
        let jobs = taken.iter().map(|entry| new_job(entry.id, &entry.job, parked)).collect();
        self.dq.shared().stores.schedule(jobs).await?;
        let ids: Vec<_> = taken.iter().map(|entry| entry.id).collect();
        let marked = self.source.journal().mark_stored(&ids).await?;
        let (stored, finished): (Vec<_>, Vec<_>) =
            taken.into_iter().zip(marked).partition(|(_, marked)| *marked);
        for (entry, _) in &finished {
            // The job parked just now is a duplicate, unless the other import released this very
            // job.
            if self.is_parked(entry).await? {
                self.dq.backend().cancel(&[entry.reference()]).await?;
            }
        }
        Ok(stored.into_iter().map(|(entry, _)| entry).collect())
    }

    /// Steps 5 and 6 for these entries.
    async fn release(&self, stored: Vec<JournalEntry>) -> Result<()> {
        if stored.is_empty() {
            return Ok(());
        }
        self.unpark(&stored).await?;
        let ids: Vec<_> = stored.iter().map(|entry| entry.id).collect();
        self.source.journal().remove(&ids).await
    }

    /// Step 5 for these entries.
    async fn unpark<'e>(&self, stored: impl IntoIterator<Item = &'e JournalEntry>) -> Result<()> {
        let moves: Vec<Reschedule> = stored
            .into_iter()
            .map(|entry| Reschedule { job: entry.reference(), due: Due::At(entry.job.due) })
            .collect();
        // `NotFound` and `AlreadyRunning` mean that the job was released before.
        self.dq.backend().reschedule(&moves).await.map(drop)
    }

    /// Continues each entry at its stage.
    async fn resume_entries(&self, entries: Vec<JournalEntry>) -> Result<()> {
        let (taken, stored): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| entry.stage == Stage::Taken);
        self.check_store(&stored).await?;
        let parked = self.park(taken).await?;
        self.release(parked).await?;
        if stored.is_empty() {
            return Ok(());
        }
        let mut parked = Vec::with_capacity(stored.len());
        for entry in &stored {
            // Someone may have rescheduled a released job on purpose.
            if self.is_parked(entry).await? {
                parked.push(entry);
            }
        }
        self.unpark(parked).await?;
        let ids: Vec<_> = stored.iter().map(|entry| entry.id).collect();
        self.source.journal().remove(&ids).await
    }

    /// Keeps stored entries in the journal if the target is not the store with their jobs.
    ///
    /// A job that is not due yet is in the target, unless an operator ran or removed it. An absent
    /// due job proves nothing, because it may have ended without a trace.
    async fn check_store(&self, stored: &[JournalEntry]) -> Result<()> {
        let target = self.dq.backend();
        let now = target.now().await?;
        let mut missing = None;
        for entry in stored.iter().filter(|entry| entry.job.due > now) {
            if target.get(&entry.reference()).await?.is_some() {
                return Ok(());
            }
            missing = Some(entry);
        }
        let Some(JournalEntry { id, job, .. }) = missing else { return Ok(()) };
        let message = format!(
            "the job {id}, which an interrupted import of {} has stored, is not in this store",
            self.source.name()
        );
        Err(Error::invalid(message).remedy(format!(
            "import into the store and queue ({}) of the interrupted import; if the job was removed \
             from them, import again when it would be due: {}",
            job.queue, job.due
        )))
    }

    async fn is_parked(&self, entry: &JournalEntry) -> Result<bool> {
        let target = self.dq.backend();
        let Some(JobView { job, .. }) = target.get(&entry.reference()).await? else {
            return Ok(false);
        };
        // Time has passed since it was parked, more if an interrupted import resumes late.
        let far = target.now().await? + PARK_FOR / 2;
        Ok(job.due > far && job.due != entry.job.due)
    }

    fn batch(&self) -> usize {
        BATCH.min(self.dq.shared().limits.bulk).max(1)
    }

    fn check_limits(&self, id: JobId, job: ImportJob) -> Result<ImportJob, String> {
        let shared = self.dq.shared();
        let now = shared.environment.clock.now();
        match shared.limits.check(&new_job(id, &job, Due::At(job.due)), now) {
            Ok(()) => Ok(job),
            Err(error) => Err(error.message().to_owned()),
        }
    }
}

/// The counts of one scan of a part.
#[derive(Debug, Default)]
struct Scan {
    taken: u64,
    /// Entries that were gone or changed before they could be taken.
    not_taken: u64,
    /// Entries that stay at the front of the part; the next listing skips them.
    offset: u64,
    rejected: ReasonCounts,
}

fn new_job(id: JobId, job: &ImportJob, due: Due) -> NewJob {
    NewJob::new(id, job.queue.clone(), due, job.payload.clone())
}

impl Dq {
    /// Moves all jobs from another store into this one, each exactly once.
    ///
    /// [`import`](self) describes the steps and how they resume. Jobs that exceed the target's
    /// [`Limits`](crate::Limits) stay in the source.
    ///
    /// **Cancellation safety:** after an error or a dropped future, call it again with the same
    /// source and store within five years. Until then, up to a hundred jobs are in the source's
    /// journal, where no runner finds them. Another store is refused if it lacks a stored job that
    /// is not due yet.
    ///
    /// # Errors
    /// `Unsupported` if the store cannot reschedule or cancel jobs; `InvalidInput` if it is not the
    /// interrupted import's store, or has the source's queue; `Unavailable` if the source or the
    /// store cannot be reached.
    pub async fn import(&self, source: impl ImportSource) -> Result<ImportReport> {
        Import::new(self, &source).run().await.map_err(|error| error.operation("import"))
    }

    /// Counts the jobs that [`import`](Self::import) would move now.
    ///
    /// # Errors
    /// `Unavailable` if the source cannot be reached.
    pub async fn preview_import(&self, source: impl ImportSource) -> Result<ImportPreview> {
        let preview = Import::new(self, &source).preview().await;
        preview.map_err(|error| error.operation("import"))
    }
}
