//! Jobs from elsewhere, each exactly once: [`Dq::import`](crate::Dq::import).
//!
//! Two stores cannot be changed in one step, this process may die between any two, the target may
//! run a job as soon as it is due, and others may take from the source meanwhile. So every job goes
//! through a journal that the *source* keeps, and through the target parked:
//!
//! | | step | where the job is when the process dies after it |
//! |---|---|---|
//! | 1 | the source lists some entries, removing nothing | in the source |
//! | 2 | the source takes an entry out of its list and into the journal, as *taken*, under a new job id, in one atomic step | in the journal only; nobody else can take it |
//! | 3 | the target schedules it under that id, but parked: due in ten years | in both; the target cannot run it yet |
//! | 4 | the journal notes that it is *stored* | in both; never scheduled again |
//! | 5 | the target moves it to its own due time | in the target, which may have run it already |
//! | 6 | the journal forgets it | in the target |
//!
//! An import begins with what the journal still has: a *taken* entry goes on with step 3, which an
//! id makes harmless to repeat as long as the job cannot have run; a *stored* one goes on with step
//! 5, which changes nothing when the job has run and is gone. Nothing is scheduled after it could
//! have run, so nothing is doubled; nothing is forgotten before it is in the target, so nothing is
//! lost.
//!
//! The ids are new and not made from the entries: an entry that is the same again later is another
//! job, and two equal elements of a list are two jobs.
//!
//! Two imports of one source at once do each other's work. One that finds at step 4 that the other
//! has finished with an entry cancels what it has just parked, unless that is the very job that the
//! other has released. Only if it is killed right there does a parked job remain, so one at a time is
//! better.
//!
//! What the target would not accept is told from [`Limits`](crate::Limits) before anything is taken,
//! and stays where it is.

mod report;
mod source;

use std::time::Duration;

pub use report::{ImportReport, Reasons};
pub use source::{ImportJob, ImportSource, Listed, Open, Stage, Taking};

use super::dq::Dq;
use crate::backend::{Backend, Reschedule};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Due, JobId, JobView, NewJob};

/// How many entries go through the steps together.
const BATCH: usize = 100;

/// Where jobs wait that must not run yet: this far ahead.
const PARK: Duration = Duration::from_secs(10 * 365 * 86_400);

/// How often entries may be listed again with none of them to be had.
const PATIENCE: u32 = 10;

/// One import on its way.
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
        let offers = target.capabilities();
        for (offered, feature) in [
            (offers.reschedule, "reschedule"),
            (offers.cancel, "cancel"),
            (offers.browse, "looking at single jobs"),
        ] {
            if !offered {
                return Err(Error::unsupported(target.name(), feature)
                    .remedy("import needs it, so that no job runs twice; choose another backend"));
            }
        }
        let horizon = self.dq.shared().limits.horizon;
        if horizon < PARK {
            return Err(Error::new(
                ErrorKind::Config,
                format!("`limits.horizon` is {horizon:?}, less than the ten years for which an import parks jobs"),
            )
            .remedy("raise `limits.horizon` for the import: a job that comes due while it is parked could run twice"));
        }
        self.resume().await?;
        for part in 0..self.source.parts() {
            self.empty(part).await?;
        }
        Ok(self.report)
    }

    /// Finishes what an earlier import has begun.
    async fn resume(&mut self) -> Result<()> {
        loop {
            let open = self.source.open(self.batch()).await?;
            if open.is_empty() {
                return Ok(());
            }
            self.report.resumed += open.len() as u64;
            self.go_on(open).await?;
        }
    }

    /// Takes one part of the source until only what cannot be imported is left in it.
    async fn empty(&mut self, part: usize) -> Result<()> {
        let mut fruitless = 0;
        loop {
            let pass = self.pass(part).await?;
            // Others who take from the front shift what lies behind the entries that were skipped.
            let shifted = pass.taken > 0 && pass.skipped > 0;
            if !shifted && pass.missed == 0 {
                self.report.left.merge(pass.left);
                return Ok(());
            }
            fruitless = if pass.taken == 0 { fruitless + 1 } else { 0 };
            if fruitless == PATIENCE {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "{} entries of {} were listed {PATIENCE} times and could not be taken",
                        pass.missed,
                        self.source.name()
                    ),
                )
                .remedy("they are being changed all the while; import once more"));
            }
        }
    }

    /// Goes through one part from its front to its end.
    async fn pass(&mut self, part: usize) -> Result<Pass> {
        let mut pass = Pass::default();
        loop {
            let listed = self.source.list(part, pass.skipped, self.batch()).await?;
            if listed.is_empty() {
                return Ok(pass);
            }
            let mut wishes = Vec::with_capacity(listed.len());
            for Listed { token, job, again } in listed {
                let id = self.dq.new_id();
                match job.and_then(|job| self.acceptable(id, job)) {
                    Ok(job) => wishes.push(Taking { id, token, job }),
                    Err(reason) => {
                        pass.skipped += 1;
                        if !again {
                            pass.left.add(reason);
                        }
                    }
                }
            }
            if !wishes.is_empty() {
                self.carry(part, wishes, &mut pass).await?;
            }
        }
    }

    /// Takes entries and brings those that were still there into the target.
    async fn carry(&mut self, part: usize, wishes: Vec<Taking>, pass: &mut Pass) -> Result<()> {
        let answers = self.source.take(part, &wishes).await?;
        let asked = wishes.len();
        let taken: Vec<Open> = wishes
            .into_iter()
            .zip(answers)
            .filter(|(_, taken)| *taken)
            .map(|(Taking { id, job, .. }, _)| Open { id, job, stage: Stage::Taken })
            .collect();
        let missed = (asked - taken.len()) as u64;
        pass.missed += missed;
        // Perhaps they are there still, with another time: not to be listed again in this pass.
        pass.skipped += missed;
        pass.taken += taken.len() as u64;
        let taken = self.store(taken).await?;
        self.report.imported += taken.len() as u64;
        self.release(taken).await
    }

    /// Steps 3 and 4; answers which entries this import is to go on with.
    async fn store(&self, taken: Vec<Open>) -> Result<Vec<Open>> {
        if taken.is_empty() {
            return Ok(taken);
        }
        let park = Due::After(PARK);
        let jobs = taken.iter().map(|open| new_job(open.id, &open.job, park)).collect();
        self.dq.shared().stores.schedule(jobs).await?;
        let ids: Vec<_> = taken.iter().map(|open| open.id).collect();
        let noted = self.source.stored(&ids).await?;
        let (ours, others): (Vec<_>, Vec<_>) =
            taken.into_iter().zip(noted).partition(|(_, noted)| *noted);
        for (open, _) in &others {
            // Another import has been through with it. Either it released the very job, or what has
            // just been parked is one too many.
            if self.is_parked(open).await? {
                self.dq.backend().cancel(&[open.reference()]).await?;
            }
        }
        Ok(ours.into_iter().map(|(open, _)| open).collect())
    }

    /// Steps 5 and 6.
    async fn release(&self, stored: Vec<Open>) -> Result<()> {
        if stored.is_empty() {
            return Ok(());
        }
        self.unpark(&stored).await?;
        let ids: Vec<_> = stored.iter().map(|open| open.id).collect();
        self.source.done(&ids).await
    }

    async fn unpark<'o>(&self, stored: impl IntoIterator<Item = &'o Open>) -> Result<()> {
        let moves: Vec<Reschedule> = stored
            .into_iter()
            .map(|open| Reschedule { job: open.reference(), due: Due::At(open.job.due) })
            .collect();
        // `NotFound` and `AlreadyRunning` are as good: it has been released before.
        self.dq.backend().reschedule(&moves).await.map(drop)
    }

    /// From wherever an earlier import has left these entries.
    async fn go_on(&self, open: Vec<Open>) -> Result<()> {
        let (taken, stored): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|open| open.stage == Stage::Taken);
        let taken = self.store(taken).await?;
        self.release(taken).await?;
        if stored.is_empty() {
            return Ok(());
        }
        let mut parked = Vec::with_capacity(stored.len());
        for open in &stored {
            // One that was released may have been moved since, by somebody who meant it.
            if self.is_parked(open).await? {
                parked.push(open);
            }
        }
        self.unpark(parked).await?;
        let ids: Vec<_> = stored.iter().map(|open| open.id).collect();
        self.source.done(&ids).await
    }

    /// Whether the job waits to be released.
    async fn is_parked(&self, open: &Open) -> Result<bool> {
        let target = self.dq.backend();
        let Some(JobView { job, .. }) = target.get(&open.reference()).await? else {
            return Ok(false);
        };
        let far = target.now().await? + PARK / 2;
        Ok(job.due > far && job.due != open.job.due)
    }

    fn batch(&self) -> usize {
        BATCH.min(self.dq.shared().limits.bulk).max(1)
    }

    /// The job if the target would accept it, or why not; asked before anything is moved.
    fn acceptable(&self, id: JobId, job: ImportJob) -> Result<ImportJob, String> {
        let shared = self.dq.shared();
        let now = shared.environment.clock.now();
        match shared.limits.check(&new_job(id, &job, Due::At(job.due)), now) {
            Ok(()) => Ok(job),
            Err(error) => Err(error.what().to_owned()),
        }
    }
}

/// What one way through a part came to.
#[derive(Debug, Default)]
struct Pass {
    taken: u64,
    /// Listed, and then not there any more or changed.
    missed: u64,
    /// Entries in front that are not to be listed again.
    skipped: u64,
    left: Reasons,
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
    /// same source and store: it continues where it stopped. Until then, up to a hundred jobs are in
    /// the source's journal, where no runner finds them. Call it again within ten years.
    ///
    /// # Errors
    /// `Unsupported` if the store cannot reschedule or cancel jobs, `Unavailable` if the source or
    /// the store cannot be reached.
    pub async fn import(&self, source: impl ImportSource) -> Result<ImportReport> {
        Import::new(self, &source).run().await.map_err(|error| error.operation("import"))
    }
}
