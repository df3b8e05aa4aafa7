//! An import source that others may also take from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use dq_core::import::{
    ImportJob, ImportJournal, ImportSource, JournalEntry, SourceEntry, Stage, TakeRequest,
};
use dq_core::{Dq, JobId, Result, Timestamp, async_trait};
use dq_testkit::fixture::{queue, run_due};

#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// Each part stands for a list or a sorted set.
    pub(crate) parts: Vec<Vec<Entry>>,
    /// The jobs that were taken from the parts and are not imported yet.
    pub(crate) journal: BTreeMap<JobId, (Stage, ImportJob)>,
    /// These payloads must not run later: other consumers took them, or a concurrent import ran
    /// them.
    pub(crate) taken_by_others: Vec<String>,
    /// Before these calls, counted from 1, another consumer takes the part's first entry. Journal
    /// calls count, too, and take from part 0.
    pub(crate) competing_takes: BTreeSet<usize>,
    calls: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) payload: String,
    pub(crate) due: Timestamp,
    pub(crate) is_job: bool,
    pub(crate) in_later_part: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct MemorySource {
    contents: Arc<Mutex<Contents>>,
    /// A second import, which runs completely at this point in the first one.
    pub(crate) concurrent_import: Arc<Mutex<Option<(StartAt, Dq)>>>,
}

impl MemorySource {
    pub(crate) fn new(parts: Vec<Vec<Entry>>) -> Self {
        let contents = Arc::new(Mutex::new(Contents { parts, ..Contents::default() }));
        Self { contents, concurrent_import: Arc::default() }
    }

    pub(crate) fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap()
    }

    /// Also runs the due jobs, so that a job that the first import stores again runs twice.
    async fn import_concurrently(&self, point: StartAt) {
        let import = self.concurrent_import.lock().unwrap().take_if(|(at, _)| *at == point);
        if let Some((_, dq)) = import {
            dq.import(self).await.unwrap();
            let ran = run_due(&**dq.backend(), "Q").await;
            self.contents().taken_by_others.extend(ran);
        }
    }

    fn call<T>(&self, part: usize, act: impl FnOnce(&mut Contents) -> T) -> T {
        let mut contents = self.contents();
        contents.calls += 1;
        if contents.competing_takes.contains(&contents.calls) && !contents.parts[part].is_empty() {
            let taken = contents.parts[part].remove(0).payload;
            contents.taken_by_others.push(taken);
        }
        act(&mut contents)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartAt {
    /// Before the target has the job.
    BeforeSchedule,
    /// Before the journal records that the target has it.
    BeforeStored,
}

fn token(entry: &Entry) -> Bytes {
    format!("{} {}", entry.due.as_millis(), entry.payload).into()
}

#[async_trait]
impl ImportSource for MemorySource {
    fn name(&self) -> String {
        "the memory source".to_owned()
    }

    fn parts(&self) -> usize {
        self.contents().parts.len()
    }

    async fn list(&self, part: usize, skip: u64, limit: usize) -> Result<Vec<SourceEntry>> {
        Ok(self.call(part, |contents| {
            let entries = contents.parts[part].iter().skip(skip as usize).take(limit);
            let listed = entries.map(|entry| SourceEntry {
                token: token(entry),
                job: if entry.is_job {
                    Ok(ImportJob {
                        queue: queue("Q"),
                        payload: entry.payload.clone().into(),
                        due: entry.due,
                    })
                } else {
                    Err("it is not a job".to_owned())
                },
                in_later_part: entry.in_later_part,
            });
            listed.collect()
        }))
    }

    async fn take(&self, part: usize, requests: &[TakeRequest]) -> Result<Vec<bool>> {
        let taken = self.call(part, |contents| {
            let take = |request: &TakeRequest| {
                let entries = &mut contents.parts[part];
                let Some(at) = entries.iter().position(|entry| token(entry) == request.token)
                else {
                    return false;
                };
                entries.remove(at);
                contents.journal.insert(request.id, (Stage::Taken, request.job.clone()));
                true
            };
            requests.iter().map(take).collect()
        });
        self.import_concurrently(StartAt::BeforeSchedule).await;
        Ok(taken)
    }

    fn journal(&self) -> &dyn ImportJournal {
        self
    }
}

#[async_trait]
impl ImportJournal for MemorySource {
    async fn entries(&self, limit: usize) -> Result<Vec<JournalEntry>> {
        Ok(self.call(0, |contents| {
            let entries = contents.journal.iter().take(limit);
            entries
                .map(|(id, (stage, job))| JournalEntry { id: *id, stage: *stage, job: job.clone() })
                .collect()
        }))
    }

    async fn mark_stored(&self, ids: &[JobId]) -> Result<Vec<bool>> {
        self.import_concurrently(StartAt::BeforeStored).await;
        Ok(self.call(0, |contents| {
            let mark =
                |id| contents.journal.get_mut(id).map(|entry| entry.0 = Stage::Stored).is_some();
            ids.iter().map(mark).collect()
        }))
    }

    async fn remove(&self, ids: &[JobId]) -> Result<()> {
        self.call(0, |contents| contents.journal.retain(|id, _| !ids.contains(id)));
        Ok(())
    }
}
