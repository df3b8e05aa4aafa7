//! Command transcripts, on a memory store with a virtual clock.

mod enqueue;
mod forecast;
mod jobs;
mod queues;
mod schedules;
mod where_is;

use std::sync::Arc;

use clap::Parser as _;
use dq_core::{
    Announcement, Backend, ClaimParams, Clock, DeadKind, DeadReason, Dq, DurationExt, Entropy,
    HistoryLimit, HistoryLimits, LeasedJob, MemoryBackend, QueueName, Settlement, Verdict,
    VirtualClock, Want,
};
use tokio::runtime::Runtime;

use crate::args::Args;
use crate::output::Output;
use crate::source::{Local, Source, runtime};

struct Fixture {
    runtime: Runtime,
    clock: Arc<VirtualClock>,
    backend: Arc<MemoryBackend>,
    source: Source,
}

impl Fixture {
    fn new() -> Self {
        let start = dq_ops::parse_timestamp("2027-01-31T10:00:00Z").unwrap();
        let clock = Arc::new(VirtualClock::new(start));
        let history = HistoryLimits::all(HistoryLimit::default());
        let backend = MemoryBackend::with_history(Arc::clone(&clock) as Arc<dyn Clock>, history);
        let backend = Arc::new(backend);
        let builder = Dq::builder().backend(Arc::clone(&backend) as Arc<dyn Backend>);
        let builder = builder.clock(Arc::clone(&clock) as Arc<dyn Clock>);
        let runtime = runtime().unwrap();
        let dq = runtime.block_on(builder.entropy(Entropy::seeded(7)).connect()).unwrap();
        let source = Source::Store(Local::new(crate::source::runtime().unwrap(), dq));
        Self { runtime, clock, backend, source }
    }

    fn claim(&self, queue: &str, worker: &str) -> Vec<LeasedJob> {
        let wants = [Want::new(QueueName::new(queue).unwrap(), 100, 10.minutes())];
        let claim = self.backend.claim(ClaimParams::new(&wants, 100, worker));
        self.runtime.block_on(claim).unwrap().jobs
    }

    fn settle(&self, queue: &str, worker: &str, verdict: &Verdict) {
        for job in self.claim(queue, worker) {
            let settlements = [Settlement::new(job.lease(), verdict.clone())];
            self.runtime.block_on(self.backend.settle(&settlements)).unwrap();
        }
    }

    fn announce(&self, name: &str, info: String) {
        let announcement = Announcement::new(name, info, 1.hours());
        self.runtime.block_on(self.backend.announce(announcement)).unwrap();
    }

    fn advance(&self, by: std::time::Duration) {
        self.clock.advance(by);
    }

    /// Runs a command line. Returns the output, then the notes after `#`, the error, and the exit
    /// code unless it is 0.
    fn run(&self, line: &[&str]) -> String {
        let args = Args::try_parse_from([&["dq"], line].concat()).unwrap();
        let (mut results, mut notes) = (Vec::new(), Vec::new());
        let mut output = Output::new(&mut results, &mut notes, args.target.json);
        let result = crate::commands::run(&args.command, &self.source, &mut output);
        let result = result.and_then(|()| output.flush());
        // An error does not take back printed output.
        let _ = output.flush();
        drop(output);
        let mut text = String::from_utf8(results).unwrap();
        for note in String::from_utf8(notes).unwrap().lines() {
            text += &format!("# {note}\n");
        }
        if let Err(failure) = result {
            text += &failure.report().unwrap_or_default();
            text += &format!("exit code {}\n", failure.code());
        }
        text
    }

    /// Runs a command line, which must print exactly the transcript.
    #[track_caller]
    fn expect(&self, line: &[&str], transcript: &str) {
        assert_eq!(self.run(line), transcript, "{line:?}");
    }
}

fn id_of(line: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(line).unwrap();
    value["id"].as_str().unwrap().to_owned()
}

/// Returns a store with three dead jobs and two waiting ones in the queue MAIL. One waiting job has
/// a dead job's key, `a-1`; the other one's id is returned.
fn with_dead() -> (Fixture, String) {
    let fixture = Fixture::new();
    for (key, due) in [("a-1", "now"), ("a-2", "now"), ("b-1", "now")] {
        fixture.run(&["enqueue", "MAIL", r#""dead letter""#, "--key", key, "--due", due]);
    }
    let reason = DeadReason::new(DeadKind::Exhausted, "SMTP 550: no such user");
    let verdict = Verdict::Dead { reason, failed: true };
    fixture.settle("MAIL", "web-1", &verdict);
    fixture.advance(1.seconds());
    fixture.run(&["enqueue", "MAIL", r#"{"to":"ann"}"#, "--key", "a-1", "--due", "1d"]);
    let id = id_of(&fixture.run(&["enqueue", "MAIL", r#"{"to":"bob"}"#, "--json"]));
    (fixture, id)
}

const SET: [&str; 9] = [
    "schedules",
    "set",
    "report",
    "REPORT",
    r#"{"region":"eu"}"#,
    "--cron",
    "30 2 * * *",
    "--tz",
    "Europe/Stockholm",
];
