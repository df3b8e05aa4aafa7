//! Reads and judges the logs of all processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::crew::Ends;
use crate::run::Result;

/// Milliseconds within which a process that ends well has settled a run. Longer than a settlement
/// takes, and longer than three of the run's leases (3 s each).
const SETTLED_WITHIN: u64 = 10_000;

#[derive(Debug, Default)]
struct Job {
    due: u64,
    stored: bool,
    cancelled: Option<u64>,
    /// The answer to a cancel was lost.
    perhaps_cancelled: bool,
    /// The store already had another job with its key, although no other job has that key.
    refused: bool,
    starts: Vec<u64>,
    /// Ends logged by processes that ended well, and by crashed ones.
    ends: usize,
    ends_before_crash: usize,
    /// The first end logged by a process that ended well.
    first_end: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    jobs: BTreeMap<String, Job>,
    processes: usize,
    errors: BTreeMap<(String, String), usize>,
    /// Expected refusals of outdated processes.
    refusals: usize,
    failures: Vec<String>,
}

impl History {
    /// Reads the logs in `dir`. A job may run again if a crashed process logged its end: the
    /// settlement may be lost.
    pub(crate) fn read(dir: &Path, ends: Ends) -> Result<Self> {
        let mut history = Self { failures: ends.failures, ..Self::default() };
        let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
        for entry in fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|extension| extension != "log") {
                continue;
            }
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).map_err(failed)?;
            history.processes += 1;
            for line in text.lines() {
                history.add(&name, line, ends.crashed.contains(&name))?;
            }
        }
        Ok(history)
    }

    fn add(&mut self, process: &str, line: &str, crashed: bool) -> Result {
        let malformed = || format!("a malformed line in a log: {line:?}");
        let [event, job, at] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(malformed());
        };
        let at: u64 = at.parse().map_err(|_| malformed())?;
        match event {
            // Not about a job; a failed process is in `failures`.
            "connected" | "failed" => return Ok(()),
            "error" => {
                *self.errors.entry((process.to_owned(), job.to_owned())).or_default() += 1;
                return Ok(());
            }
            _ => {}
        }
        let job = self.jobs.entry(job.to_owned()).or_default();
        match event {
            "due" => job.due = at,
            "stored" => job.stored = true,
            "cancelled" => job.cancelled = Some(at),
            "perhaps-cancelled" => job.perhaps_cancelled = true,
            "not-cancelled" => job.perhaps_cancelled = false,
            "refused" => job.refused = true,
            "start" => job.starts.push(at),
            "end" if crashed => job.ends_before_crash += 1,
            "end" => {
                job.ends += 1;
                job.first_end = Some(job.first_end.map_or(at, |first| first.min(at)));
            }
            _ => return Err(malformed()),
        }
        Ok(())
    }

    /// Expects refusals of this program for being too old; they are no violation.
    pub(crate) fn expect_refusals(&mut self, program: &str) {
        self.errors.retain(|(process, kind), calls| {
            let is_refusal = process.starts_with(program) && kind == "Incompatible";
            self.refusals += if is_refusal { *calls } else { 0 };
            !is_refusal
        });
        if self.refusals == 0 {
            self.failures.push(format!("no call of {program} was refused"));
        }
    }

    pub(crate) fn summary(&self) -> String {
        let count = |of: fn(&Job) -> bool| self.jobs.values().filter(|job| of(job)).count();
        format!(
            "{} processes, {} jobs stored, {} cancelled, {} done, {} runs, {} calls refused",
            self.processes,
            count(|job| job.stored),
            count(|job| job.cancelled.is_some()),
            count(|job| job.ends + job.ends_before_crash > 0),
            self.jobs.values().map(|job| job.starts.len()).sum::<usize>(),
            self.refusals,
        )
    }

    /// Lists failed processes and calls, lost jobs, and jobs that ran early, after their cancel, or
    /// again after they were done.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut violations = self.failures.clone();
        if !self.jobs.values().any(|job| job.ends > 0) {
            violations.push("no job was done".to_owned());
        }
        for ((process, kind), calls) in &self.errors {
            violations.push(format!("calls of {process} failed {calls} times: {kind}"));
        }
        for (name, job) in &self.jobs {
            let done = job.ends + job.ends_before_crash;
            if job.stored && done == 0 && job.cancelled.is_none() && !job.perhaps_cancelled {
                violations.push(format!("{name} is lost"));
            }
            if job.refused {
                violations.push(format!("{name} was not stored"));
            }
            if job.ends > 1 {
                violations.push(format!("{name} was done {done} times"));
            } else if let Some(end) = job.first_end
                && job.starts.iter().any(|start| *start > end + SETTLED_WITHIN)
            {
                violations.push(format!("{name} started again after it was done"));
            }
            if let Some(start) = job.starts.iter().find(|start| **start < job.due) {
                violations.push(format!("{name} started {} ms early", job.due - start));
            }
            if let Some(cancelled) = job.cancelled
                && job.starts.iter().any(|start| *start > cancelled)
            {
                violations.push(format!("{name} started after it was cancelled"));
            }
        }
        violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(lines: &[(&str, bool)]) -> Vec<String> {
        let mut history = History::default();
        for line in
            [("due z 1", false), ("stored z 1", false), ("start z 2", false), ("end z 3", false)]
        {
            history.add("a process", line.0, line.1).unwrap();
        }
        for (line, crashed) in lines {
            history.add("a process", line, *crashed).unwrap();
        }
        history.violations()
    }

    #[test]
    fn each_kind_of_violation_is_found() {
        assert_eq!(violations(&[]), [""; 0]);
        assert_eq!(violations(&[("stored a 1", false)]), ["a is lost"]);
        let not_cancelled =
            [("stored a 1", false), ("perhaps-cancelled a 2", false), ("not-cancelled a 3", false)];
        assert_eq!(violations(&not_cancelled[..2]), [""; 0]);
        assert_eq!(violations(&not_cancelled), ["a is lost"]);
        assert_eq!(violations(&[("refused a 1", false)]), ["a was not stored"]);
        assert_eq!(
            violations(&[("error Full 1", false)]),
            ["calls of a process failed 1 times: Full"]
        );
        assert_eq!(violations(&[("start z 4", false), ("end z 5", false)]), ["z was done 2 times"]);
        assert_eq!(
            violations(&[("due a 9", false), ("start a 7", false)]),
            ["a started 2 ms early"]
        );
        let cancelled = [("cancelled a 5", false), ("start a 6", false)];
        assert_eq!(violations(&cancelled), ["a started after it was cancelled"]);
        assert_eq!(violations(&[("start z 4", true), ("end z 5", true)]), [""; 0]);
        assert_eq!(violations(&[("start z 10004", true)]), ["z started again after it was done"]);
    }

    #[test]
    fn refusals_are_expected_of_the_old_program_only_and_must_occur() {
        let after = |processes: &[&str]| {
            let mut history = History::default();
            for process in processes {
                history.add(process, "error Incompatible 1", false).unwrap();
                history.add(process, "end a 2", false).unwrap();
            }
            history.expect_refusals("old");
            (history.refusals, history.errors.len(), history.failures.len())
        };
        assert_eq!(after(&["old1", "old2"]), (2, 0, 0));
        assert_eq!(after(&["old1", "new3"]), (1, 1, 0));
        assert_eq!(after(&[]), (0, 0, 1));
    }
}
