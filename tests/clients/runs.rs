//! The runs of jobs, as worker programs note them in a file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tempfile::TempDir;

use dq::{JobId, Timestamp};

/// A handler's run. The times are by the machine's clock.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) start: Timestamp,
    /// Nothing if the run was cancelled, or its process killed.
    pub(crate) end: Option<Timestamp>,
}

/// The runs, by job and fencing token.
pub(crate) type Runs = BTreeMap<(JobId, u64), Run>;

/// Where worker programs note their runs, and write their errors.
pub(crate) struct Notes(TempDir);

impl Notes {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.path().join("runs")
    }

    pub(crate) fn read(&self) -> Runs {
        let mut runs = Runs::new();
        let text = std::fs::read_to_string(self.file()).unwrap();
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
            let errors = std::fs::read_to_string(self.file().with_extension("errors"));
            let errors = errors.unwrap_or_default();
            let lines: Vec<_> = errors.lines().rev().take(200).collect();
            println!("the workers' last errors, from the end:\n{}", lines.join("\n"));
        }
    }
}
