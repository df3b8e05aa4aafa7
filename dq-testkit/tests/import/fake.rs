//! A source in memory, a target whose calls count too, and the step at which the process dies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use dq_core::import::{ImportJob, ImportSource, JournalEntry, SourceEntry, Stage, TakeRequest};
use dq_core::{
    Backend, Cancelled, Capabilities, Dq, Error, ErrorKind, JobId, JobRef, NewJob, QueueName,
    Reschedule, Rescheduled, Result, Scheduled, Timestamp, async_trait,
};
use dq_testkit::faults::Layer;

/// Whether a step takes effect before the process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Death {
    Before,
    After,
}

/// Counts the steps of source and target together, and ends the process at one of them.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    steps: usize,
    death: Option<(usize, Death)>,
}

impl Fate {
    /// The next life ends at this step, counted from 1; or does not end.
    pub(crate) fn plan(fate: &Mutex<Self>, death: Option<(usize, Death)>) {
        *fate.lock().unwrap() = Self { steps: 0, death };
    }

    /// Begins a step: `true` if the process dies once it has taken effect.
    fn begin(fate: &Mutex<Self>) -> Result<bool> {
        let mut fate = fate.lock().unwrap();
        fate.steps += 1;
        match fate.death {
            Some((step, death)) if step == fate.steps => match death {
                Death::Before => Err(died()),
                Death::After => Ok(true),
            },
            _ => Ok(false),
        }
    }
}

fn died() -> Error {
    Error::new(ErrorKind::Unavailable, "the process died")
}

/// What the source holds.
#[derive(Debug, Default)]
pub(crate) struct Stock {
    pub(crate) parts: Vec<Vec<Entry>>,
    pub(crate) journal: BTreeMap<JobId, (Stage, ImportJob)>,
    /// Payloads that others have taken or run.
    pub(crate) elsewhere: Vec<String>,
    /// Others take the front entry of a part before each of these calls.
    pub(crate) thefts: BTreeSet<usize>,
    calls: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) payload: String,
    pub(crate) due: Timestamp,
    /// Not a job; and if so, whether it is shown by a later part too.
    pub(crate) foreign: Option<bool>,
}

#[derive(Debug, Clone)]
pub(crate) struct Fake {
    pub(crate) stock: Arc<Mutex<Stock>>,
    pub(crate) fate: Arc<Mutex<Fate>>,
    /// Another import, to be run through in the midst of the first.
    pub(crate) rival: Arc<Mutex<Option<(When, Dq)>>>,
}

impl Fake {
    pub(crate) fn new(fate: &Arc<Mutex<Fate>>, parts: Vec<Vec<Entry>>) -> Self {
        let stock = Stock { parts, ..Stock::default() };
        Self { stock: Arc::new(Mutex::new(stock)), fate: Arc::clone(fate), rival: Arc::default() }
    }

    pub(crate) fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap()
    }

    async fn overtake(&self, when: When) {
        let rival = self.rival.lock().unwrap().take_if(|(at, _)| *at == when);
        if let Some((_, dq)) = rival {
            dq.import(self).await.unwrap();
            let ran = crate::run_due(&dq).await;
            self.stock().elsewhere.extend(ran);
        }
    }

    fn step<T>(&self, part: usize, act: impl FnOnce(&mut Stock) -> T) -> Result<T> {
        let mut stock = self.stock();
        stock.calls += 1;
        if stock.thefts.contains(&stock.calls) && !stock.parts[part].is_empty() {
            let stolen = stock.parts[part].remove(0).payload;
            stock.elsewhere.push(stolen);
        }
        let dies = Fate::begin(&self.fate)?;
        let answer = act(&mut stock);
        if dies { Err(died()) } else { Ok(answer) }
    }
}

/// Where another import comes in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// Before the target has the job.
    Taken,
    /// Before the journal notes that it has.
    Parked,
}

fn token(entry: &Entry) -> Bytes {
    format!("{} {}", entry.due.as_millis(), entry.payload).into()
}

pub(crate) fn queue() -> QueueName {
    QueueName::new("Q").unwrap()
}

#[async_trait]
impl ImportSource for Fake {
    fn name(&self) -> String {
        "the fake".to_owned()
    }

    fn parts(&self) -> usize {
        self.stock().parts.len()
    }

    async fn list(&self, part: usize, skip: u64, limit: usize) -> Result<Vec<SourceEntry>> {
        self.step(part, |stock| {
            let entries = stock.parts[part].iter().skip(skip as usize).take(limit);
            let listed = entries.map(|entry| SourceEntry {
                token: token(entry),
                job: match entry.foreign {
                    Some(_) => Err("it is foreign".to_owned()),
                    None => Ok(ImportJob {
                        queue: queue(),
                        payload: entry.payload.clone().into(),
                        due: entry.due,
                    }),
                },
                listed_again: entry.foreign == Some(true),
            });
            listed.collect()
        })
    }

    async fn take(&self, part: usize, requests: &[TakeRequest]) -> Result<Vec<bool>> {
        let taken = self.step(part, |stock| {
            let take = |request: &TakeRequest| {
                let entries = &mut stock.parts[part];
                let Some(at) = entries.iter().position(|entry| token(entry) == request.token)
                else {
                    return false;
                };
                entries.remove(at);
                stock.journal.insert(request.id, (Stage::Taken, request.job.clone()));
                true
            };
            requests.iter().map(take).collect()
        });
        self.overtake(When::Taken).await;
        taken
    }

    async fn journal_entries(&self, limit: usize) -> Result<Vec<JournalEntry>> {
        self.step(0, |stock| {
            let open = stock.journal.iter().take(limit);
            open.map(|(id, (stage, job))| JournalEntry { id: *id, stage: *stage, job: job.clone() })
                .collect()
        })
    }

    async fn mark_stored(&self, ids: &[JobId]) -> Result<Vec<bool>> {
        self.overtake(When::Parked).await;
        self.step(0, |stock| {
            let note =
                |id| stock.journal.get_mut(id).map(|entry| entry.0 = Stage::Stored).is_some();
            ids.iter().map(note).collect()
        })
    }

    async fn remove(&self, ids: &[JobId]) -> Result<()> {
        self.step(0, |stock| stock.journal.retain(|id, _| !ids.contains(id)))
    }
}

/// A target whose calls are steps too.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) inner: Arc<dyn Backend>,
    pub(crate) fate: Arc<Mutex<Fate>>,
    pub(crate) capabilities: Capabilities,
}

impl Target {
    async fn step<T>(&self, answer: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let dies = Fate::begin(&self.fate)?;
        let answer = answer.await;
        if dies { Err(died()) } else { answer }
    }
}

#[async_trait]
impl Layer for Target {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.step(self.inner.schedule(jobs)).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.step(self.inner.cancel(jobs)).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.step(self.inner.reschedule(moves)).await
    }
}
