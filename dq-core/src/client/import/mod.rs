//! Imports jobs from other stores, each exactly once: [`Dq::import`](crate::Dq::import).
//!
//! Two stores cannot be changed in one atomic step, this process may die between any two steps, the
//! target may run a job as soon as it is due, and other clients may take from the source meanwhile.
//! So each job passes through a journal in the *source*, and is *parked* in the target first:
//!
//! | | step | where the job is if the process dies after it |
//! |---|---|---|
//! | 1 | the source lists entries and removes nothing | in the source |
//! | 2 | the source moves an entry into the journal, as *taken* and under a new job id, in one atomic step | only in the journal; no other client can take it |
//! | 3 | the target stores the job under that id, parked: due in ten years | in both; the target cannot run it yet |
//! | 4 | the journal marks the entry as *stored* | in both; it is never scheduled again |
//! | 5 | the target reschedules the job to its own due time | in the target, which may have run it already |
//! | 6 | the entry is removed from the journal | in the target |
//!
//! An import begins with the entries that are in the journal. A *taken* entry continues at step 3,
//! which may be repeated under the same id while the job cannot have run. A *stored* one continues
//! at step 5, which changes nothing if the job has run. No job is scheduled after it could have
//! run, so none is doubled; no entry is removed before the target has the job, so none is lost.
//!
//! Ids are new and not derived from the entries: an equal entry that appears later is another job,
//! and two equal elements of a list are two jobs.
//!
//! Two concurrent imports of one source finish each other's work. If an import finds at step 4 that
//! the other one has finished an entry, it cancels the job that it has just parked, unless that is
//! the job that the other one released. Only if it is killed at this point a parked job remains, so
//! one import at a time is better.
//!
//! Jobs that exceed the target's [`Limits`](crate::Limits) are recognized before they are taken,
//! and stay in the source.

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

/// Maximum number of entries that pass through the steps together.
const BATCH: usize = 100;

/// Delay of a parked job, which must not run yet: ten years.
const PARK_FOR: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Maximum number of entries of the journal that a preview counts.
const MAX_RESUMABLE: usize = 1_000;

/// Maximum number of consecutive scans in which no entry can be taken. Many, since consumers of the
/// source that take each entry soon after it appears win several scans in a row by chance.
const MAX_FAILED_SCANS: u32 = 100;

/// A running import.
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

    /// Lists what [`run`](Self::run) would import, and changes nothing.
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
                // The later part counts those that it lists, too.
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

    /// Finishes the entries of interrupted imports.
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

    /// Imports one part of the source, until only entries that cannot be imported are left in it.
    async fn import_part(&mut self, part: usize) -> Result<()> {
        let mut failed_scans = 0;
        loop {
            let scan = self.scan(part).await?;
            // If other clients removed entries before the offset, the scan has passed over as many
            // others. So a scan that took entries is repeated.
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

    /// Lists one part from its front to its end and imports its entries.
    ///
    /// Entries that are taken disappear from the listing, so the offset counts only those that
    /// stay.
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

    /// Takes entries and imports those that were still in the source.
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
        // Entries whose due time has changed are still listed; the next scan requests them again.
        scan.offset += not_taken;
        scan.taken += taken.len() as u64;
        let stored = self.park(taken).await?;
        self.report.imported += stored.len() as u64;
        self.release(stored).await
    }

    /// Steps 3 and 4. Returns the entries that are now stored, which this import has to release;
    /// without those that another import has finished.
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
            // Another import has finished the entry. Unless it released this very job, the job that
            // was just parked is a duplicate.
            if self.is_parked(entry).await? {
                self.dq.backend().cancel(&[entry.reference()]).await?;
            }
        }
        Ok(stored.into_iter().map(|(entry, _)| entry).collect())
    }

    /// Steps 5 and 6.
    async fn release(&self, stored: Vec<JournalEntry>) -> Result<()> {
        if stored.is_empty() {
            return Ok(());
        }
        self.unpark(&stored).await?;
        let ids: Vec<_> = stored.iter().map(|entry| entry.id).collect();
        self.source.journal().remove(&ids).await
    }

    /// Step 5.
    async fn unpark<'e>(&self, stored: impl IntoIterator<Item = &'e JournalEntry>) -> Result<()> {
        let moves: Vec<Reschedule> = stored
            .into_iter()
            .map(|entry| Reschedule { job: entry.reference(), due: Due::At(entry.job.due) })
            .collect();
        // `NotFound` and `AlreadyRunning` mean that the job was released before.
        self.dq.backend().reschedule(&moves).await.map(drop)
    }

    /// Continues the import of these entries at their stages.
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
            // A released job may have been rescheduled on purpose since.
            if self.is_parked(entry).await? {
                parked.push(entry);
            }
        }
        self.unpark(parked).await?;
        let ids: Vec<_> = stored.iter().map(|entry| entry.id).collect();
        self.source.journal().remove(&ids).await
    }

    /// Refuses to remove stored entries from the journal if the target is not the store that has
    /// their jobs.
    ///
    /// A job that is not due yet is still in the target, unless an operator has run or removed it. One
    /// that is due may have ended without a trace, so its absence proves nothing.
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

    /// Whether the target has the job with the due time of a parked one.
    async fn is_parked(&self, entry: &JournalEntry) -> Result<bool> {
        let target = self.dq.backend();
        let Some(JobView { job, .. }) = target.get(&entry.reference()).await? else {
            return Ok(false);
        };
        // Some time has passed since it was parked: more the later an interrupted import resumes.
        let far = target.now().await? + PARK_FOR / 2;
        Ok(job.due > far && job.due != entry.job.due)
    }

    /// Maximum number of entries in one call, also within the target's limit.
    fn batch(&self) -> usize {
        BATCH.min(self.dq.shared().limits.bulk).max(1)
    }

    /// The job if it is within the target's limits, or else the reason.
    fn check_limits(&self, id: JobId, job: ImportJob) -> Result<ImportJob, String> {
        let shared = self.dq.shared();
        let now = shared.environment.clock.now();
        match shared.limits.check(&new_job(id, &job, Due::At(job.due)), now) {
            Ok(()) => Ok(job),
            Err(error) => Err(error.message().to_owned()),
        }
    }
}

/// Result of one scan of a part.
#[derive(Debug, Default)]
struct Scan {
    taken: u64,
    /// Number of entries that were gone or changed when they were to be taken.
    not_taken: u64,
    /// Number of entries at the front of the part that stay there, from which the next call lists.
    offset: u64,
    /// Entries that cannot be imported.
    rejected: ReasonCounts,
}

fn new_job(id: JobId, job: &ImportJob, due: Due) -> NewJob {
    NewJob::new(id, job.queue.clone(), due, job.payload.clone())
}

impl Dq {
    /// Moves all jobs of another store into this one, each exactly once; [`import`](self) describes
    /// the steps and how they continue after an interruption.
    ///
    /// It ends when the source contains only entries that cannot be imported. Jobs that others add
    /// meanwhile may be imported now or by the next import.
    ///
    /// **Cancellation safety:** after an error, or if the future is dropped, call it again with the
    /// same source and store: it continues where it stopped, and what was begun goes to the queue
    /// that the source had then. Another store is refused if it lacks a job that was stored and is
    /// not due yet; other jobs may be left behind in the first store, parked. Until then, up to a
    /// hundred jobs are in the source's journal, where no runner finds them. Call it again within
    /// five years.
    ///
    /// # Errors
    /// `Unsupported` if the store cannot reschedule or cancel jobs, `InvalidInput` if it is not the
    /// store of an interrupted import, or has the source's queue, `Unavailable` if the source or
    /// the store cannot be reached.
    pub async fn import(&self, source: impl ImportSource) -> Result<ImportReport> {
        Import::new(self, &source).run().await.map_err(|error| error.operation("import"))
    }

    /// Counts what [`import`](Self::import) would move now, and changes nothing. The counts are not
    /// exact while other programs change the source.
    ///
    /// # Errors
    /// `Unavailable` if the source cannot be reached.
    pub async fn preview_import(&self, source: impl ImportSource) -> Result<ImportPreview> {
        let preview = Import::new(self, &source).preview().await;
        preview.map_err(|error| error.operation("import"))
    }
}
