//! The runs of jobs, as worker programs note them in a file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tempfile::TempDir;

use dq::{JobId, Timestamp};

use crate::programs::Language;

/// A handler's run. The times are by the machine's clock.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) start: Timestamp,
    /// Nothing if the run was cancelled, or its process killed.
    pub(crate) end: Option<Timestamp>,
}

/// The runs, by job and fencing token.
pub(crate) type Runs = BTreeMap<(JobId, u64), Run>;

/// Where the worker programs of each language note their runs, and write their errors.
pub(crate) struct Notes {
    directory: TempDir,
    languages: &'static [Language],
}

impl Notes {
    pub(crate) fn new(languages: &'static [Language]) -> Self {
        Self { directory: tempfile::tempdir().unwrap(), languages }
    }

    pub(crate) fn file(&self, language: Language) -> PathBuf {
        self.directory.path().join(format!("{language:?}"))
    }

    pub(crate) fn read(&self) -> Runs {
        let mut runs = Runs::new();
        let mut text = String::new();
        for language in self.languages {
            let noted = std::fs::read_to_string(self.file(*language)).unwrap_or_default();
            assert!(!noted.is_empty(), "no job has run in {language:?}");
            text += &noted;
        }
        for line in text.lines() {
            let [event, job, token, millis] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("no complete line: {line:?}");
            };
            let run = (job.parse().unwrap(), token.parse().unwrap());
            let at = Timestamp::from_millis(millis.parse().unwrap());
            if event == "start" {
                let twice = runs.insert(run, Run { start: at, end: None });
                assert!(twice.is_none(), "two runs with one token: {line}");
            } else {
                runs.get_mut(&run).expect("a run that has started").end = Some(at);
            }
        }
        runs
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for language in self.languages {
                let errors = std::fs::read_to_string(self.file(*language).with_extension("errors"));
                let errors = errors.unwrap_or_default();
                let lines: Vec<_> = errors.lines().rev().take(100).collect();
                println!("last errors in {language:?}, from the end:\n{}", lines.join("\n"));
            }
        }
    }
}
