//! Reads and judges the logs of all processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::crew::Ends;
use crate::run::Result;

/// Milliseconds within which a process that ends well has settled a run. Longer than a settlement
/// takes, and longer than three of the run's leases (3 s each).
const SETTLED_WITHIN: u64 = 10_000;

/// What the logs say about a job. All times are Unix milliseconds.
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
    /// Ends of runs in processes that ended well.
    ends: Vec<u64>,
    /// The number of ends in processes that crashed later.
    ends_before_crash: usize,
}

/// What all logs of a run say.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    jobs: BTreeMap<String, Job>,
    processes: usize,
    /// The number of failed calls by process and kind of error.
    errors: BTreeMap<(String, String), usize>,
    /// The number of expected refusals of outdated processes.
    refusals: usize,
    failures: Vec<String>,
}

impl Trace {
    /// Reads the logs in `dir`. A job may run again if a crashed process logged its end: the
    /// settlement may be lost.
    pub(crate) fn read(dir: &Path, ends: Ends) -> Result<Self> {
        let mut trace = Self { failures: ends.failures, ..Self::default() };
        let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
        for entry in fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|extension| extension != "log") {
                continue;
            }
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).map_err(failed)?;
            trace.processes += 1;
            for line in text.lines() {
                trace.add(&name, line, ends.crashed.contains(&name))?;
            }
        }
        Ok(trace)
    }

    /// Adds a line of a process's log.
    fn add(&mut self, process: &str, line: &str, has_crashed: bool) -> Result {
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
            "stored" => job.is_stored = true,
            "cancelled" => job.cancelled = Some(at),
            "perhaps-cancelled" => job.perhaps_cancelled = true,
            "not-cancelled" => job.perhaps_cancelled = false,
            "refused" => job.refused = true,
            "start" => job.starts.push(at),
            "end" if has_crashed => job.ends_before_crash += 1,
            "end" => job.ends.push(at),
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

    /// Counts of processes, jobs and runs.
    pub(crate) fn summary(&self) -> String {
        let count = |of: fn(&Job) -> bool| self.jobs.values().filter(|job| of(job)).count();
        format!(
            "{} processes, {} jobs stored, {} cancelled, {} done, {} runs, {} calls refused",
            self.processes,
            count(|job| job.is_stored),
            count(|job| job.cancelled.is_some()),
            count(|job| job.ends.len() + job.ends_before_crash > 0),
            self.jobs.values().map(|job| job.starts.len()).sum::<usize>(),
            self.refusals,
        )
    }

    /// Lists failed processes and calls, lost jobs, and jobs that ran early, after their cancel, or
    /// again after they were done.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut violations = self.failures.clone();
        if !self.jobs.values().any(|job| !job.ends.is_empty()) {
            violations.push("no job was done".to_owned());
        }
        for ((process, kind), calls) in &self.errors {
            violations.push(format!("calls of {process} failed {calls} times: {kind}"));
        }
        for (name, job) in &self.jobs {
            let done = job.ends.len() + job.ends_before_crash;
            if job.is_stored && done == 0 && job.cancelled.is_none() && !job.perhaps_cancelled {
                violations.push(format!("{name} is lost"));
            }
            if job.refused {
                violations.push(format!("{name} was not stored"));
            }
            if job.ends.len() > 1 {
                violations.push(format!("{name} was done {done} times"));
            } else if let [end] = job.ends[..]
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
            (&["start z 4", "end z 5"], &[], "z was done 2 times"),
            (&["due a 9", "start a 7"], &[], "a started 2 ms early"),
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
        let after = |processes: &[&str]| {
            let mut trace = Trace::default();
            for process in processes {
                trace.add(process, "error Incompatible 1", false).unwrap();
            }
            trace.expect_refusals("old");
            (trace.refusals, trace.errors.len(), trace.failures.len())
        };
        assert_eq!(after(&["old1", "old2"]), (2, 0, 0));
        assert_eq!(after(&["old1", "new3"]), (1, 1, 0));
        assert_eq!(after(&[]), (0, 0, 1));
    }
}
