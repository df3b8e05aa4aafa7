//! Reads and judges the logs of all processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::crew::Ends;
use crate::run::Result;

/// Milliseconds within which a process that ends well has settled a run. Longer than a settlement
/// takes, and longer than three of the run's leases (3 s each).
const SETTLED_WITHIN: u64 = 10_000;

/// The log lines about a job. All times are Unix milliseconds.
#[derive(Debug, Default)]
struct Job {
    due: u64,
    is_stored: bool,
    cancelled: Option<u64>,
    /// The answer to a cancel was lost.
    perhaps_cancelled: bool,
    /// The store already had another job with its key, although no other job has that key.
    refused: bool,
    starts: Vec<u64>,
    /// Ends of runs in processes that did not crash.
    ends: Vec<u64>,
    /// The store may not know an end that a crashed process has logged.
    ended_before_crash: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Trace {
    jobs: BTreeMap<String, Job>,
    /// The number of failed calls by process and kind of error.
    errors: BTreeMap<(String, String), usize>,
    failures: Vec<String>,
}

impl Trace {
    pub(crate) fn read(dir: &Path, ends: Ends) -> Result<Self> {
        let mut trace = Self { failures: ends.failures, ..Self::default() };
        let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
        for entry in fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|extension| extension != "log") {
                continue;
            }
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            for line in fs::read_to_string(&path).map_err(failed)?.lines() {
                trace.add(&name, line, ends.crashed.contains(&name))?;
            }
        }
        Ok(trace)
    }

    fn add(&mut self, process: &str, line: &str, has_crashed: bool) -> Result {
        let malformed = || format!("a malformed line in a log: {line:?}");
        let [event, subject, time] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(malformed());
        };
        let at: u64 = time.parse().map_err(|_| malformed())?;
        let job = match event {
            "connected" | "failed" => return Ok(()),
            "error" => {
                let kind = (process.to_owned(), subject.to_owned());
                *self.errors.entry(kind).or_default() += 1;
                return Ok(());
            }
            _ => self.jobs.entry(subject.to_owned()).or_default(),
        };
        match event {
            "due" => job.due = at,
            "stored" => job.is_stored = true,
            "cancelled" => job.cancelled = Some(at),
            "perhaps-cancelled" => job.perhaps_cancelled = true,
            "not-cancelled" => job.perhaps_cancelled = false,
            "refused" => job.refused = true,
            "start" => job.starts.push(at),
            "end" if has_crashed => job.ended_before_crash = true,
            "end" => job.ends.push(at),
            _ => return Err(malformed()),
        }
        Ok(())
    }

    /// Expects refusals of this program for being too old; they are no violation.
    pub(crate) fn expect_refusals(&mut self, program: &str) {
        let is_refusal =
            |process: &str, kind: &str| process.starts_with(program) && kind == "Incompatible";
        let count = self.errors.len();
        self.errors.retain(|(process, kind), _| !is_refusal(process, kind));
        if self.errors.len() == count {
            self.failures.push(format!("no call of {program} was refused"));
        }
    }

    pub(crate) fn summary(&self) -> String {
        let jobs = self.jobs.values();
        let cancelled = jobs.clone().filter(|job| job.cancelled.is_some()).count();
        let runs: usize = jobs.map(|job| job.starts.len()).sum();
        format!("{} jobs, {cancelled} cancelled, {runs} runs", self.jobs.len())
    }

    /// Lists failed processes and calls, lost jobs, and jobs that ran early, after their cancel, or
    /// again after they were done.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut violations = self.failures.clone();
        if self.jobs.values().all(|job| job.ends.is_empty()) {
            violations.push("no job was done".to_owned());
        }
        for ((process, kind), calls) in &self.errors {
            violations.push(format!("calls of {process} failed {calls} times: {kind}"));
        }
        for (name, job) in &self.jobs {
            let started_after = |time: u64| job.starts.iter().any(|start| *start > time);
            let first_end = job.ends.first().map(|end| end + SETTLED_WITHIN);
            let is_done = job.ended_before_crash || !job.ends.is_empty();
            let may_be_gone = is_done || job.cancelled.is_some() || job.perhaps_cancelled;
            let broken = [
                (job.is_stored && !may_be_gone, "is lost"),
                (job.refused, "was not stored"),
                (job.ends.len() > 1, "was done twice"),
                (first_end.is_some_and(started_after), "started again after it was done"),
                (job.starts.iter().any(|start| *start < job.due), "started early"),
                (job.cancelled.is_some_and(started_after), "started after it was cancelled"),
            ];
            let broken = broken.iter().filter(|(is_broken, _)| *is_broken);
            violations.extend(broken.map(|(_, promise)| format!("{name} {promise}")));
        }
        violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_violation_is_found() {
        // Lines of a process that ended well, lines of a crashed one, and the violation.
        let cases: [(&[&str], &[&str], &str); 11] = [
            (&[], &[], ""),
            (&["stored a 1"], &[], "a is lost"),
            (&["stored a 1", "perhaps-cancelled a 2"], &[], ""),
            (&["stored a 1", "perhaps-cancelled a 2", "not-cancelled a 3"], &[], "a is lost"),
            (&["refused a 1"], &[], "a was not stored"),
            (&["error Full 1"], &[], "calls of a process failed 1 times: Full"),
            (&["start z 4", "end z 5"], &[], "z was done twice"),
            (&["due a 9", "start a 7"], &[], "a started early"),
            (&["cancelled a 5", "start a 6"], &[], "a started after it was cancelled"),
            (&[], &["start z 4", "end z 5"], ""),
            (&[], &["start z 10004"], "z started again after it was done"),
        ];
        for (well, crashed, violation) in cases {
            let mut trace = Trace::default();
            for line in ["due z 1", "stored z 1", "start z 2", "end z 3"].iter().chain(well) {
                trace.add("a process", line, false).unwrap();
            }
            for line in crashed {
                trace.add("a process", line, true).unwrap();
            }
            assert_eq!(trace.violations().join("\n"), violation, "{well:?} {crashed:?}");
        }
    }

    #[test]
    fn refusals_are_expected_of_the_old_program_only_and_must_occur() {
        let cases: [(&[&str], [usize; 2]); 3] =
            [(&["old1", "old2"], [0, 0]), (&["old1", "new3"], [1, 0]), (&["new3"], [1, 1])];
        for (processes, left) in cases {
            let mut trace = Trace::default();
            for process in processes {
                trace.add(process, "error Incompatible 1", false).unwrap();
            }
            trace.expect_refusals("old");
            assert_eq!([trace.errors.len(), trace.failures.len()], left, "{processes:?}");
        }
    }
}
