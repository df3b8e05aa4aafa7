//! Command transcripts, on a memory store with a virtual clock.

use std::sync::Arc;

use clap::Parser as _;
use dq_core::{
    Announcement, Backend, ClaimParams, Clock, DeadKind, DeadReason, Dq, Due, DurationExt, Entropy,
    HistoryLimit, HistoryLimits, LeasedJob, MemoryBackend, QueueName, Settlement, Verdict,
    VirtualClock, Want,
};
use tokio::runtime::Runtime;

use crate::args::Args;
use crate::output::Output;
use crate::source::{Local, Source, runtime};

/// A store and the commands on it.
pub(super) struct Fixture {
    runtime: Runtime,
    clock: Arc<VirtualClock>,
    backend: Arc<MemoryBackend>,
    source: Source,
}

impl Fixture {
    pub(super) fn new() -> Self {
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

    pub(super) fn claim(&self, queue: &str, worker: &str) -> Vec<LeasedJob> {
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

    pub(super) fn advance(&self, by: std::time::Duration) {
        self.clock.advance(by);
    }

    /// Returns the output, notes, error, and exit code unless 0.
    pub(super) fn run(&self, line: &[&str]) -> String {
        let args = Args::try_parse_from([&["dq"], line].concat()).unwrap();
        let (mut results, mut notes) = (Vec::new(), Vec::new());
        let mut output = Output::new(&mut results, &mut notes, args.target.json);
        let result = super::run(&args.command, &self.source, &mut output);
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

    #[track_caller]
    pub(super) fn expect(&self, line: &[&str], transcript: &str) {
        assert_eq!(self.run(line), transcript, "{line:?}");
    }
}

fn id_of(line: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(line).unwrap();
    value["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_job_is_scheduled_moved_explained_and_cancelled() {
    let fixture = Fixture::new();
    let job = ["ORDER_TIMEOUT", "key:order-4711"];
    let line = ["enqueue", job[0], r#" {"order":4711} "#, "--key", "order-4711", "--due", "30m"];
    let created =
        fixture.run(&[&line[..], &["--header", "a=b", "--max-attempts", "6", "--json"]].concat());
    let id = id_of(&created);
    assert_eq!(
        created,
        format!(
            "{{\"result\":\"created\",\"id\":\"{id}\",\"due\":\"2027-01-31T10:30:00.000Z\"}}\n"
        )
    );
    fixture.expect(
        &line,
        &format!(
            "not scheduled: ORDER_TIMEOUT/{id} has the key, due 2027-01-31T10:30:00.000Z\nexit code 4\n"
        ),
    );
    fixture.expect(
        &["where", job[0], job[1]],
        "ORDER_TIMEOUT/order-4711   scheduled, due in 30 min\n  \
           10:00:00.000  scheduled\n  \
           now           not due; no runner listens\n",
    );
    fixture.expect(
        &["jobs", "move", job[0], job[1], "--to", "1h"],
        "moved ORDER_TIMEOUT/key:order-4711, due 2027-01-31T11:00:00.000Z\n",
    );
    fixture.expect(
        &["jobs", "get", job[0], job[1]],
        &format!(
            "id        {id}\nqueue     ORDER_TIMEOUT\nkey       order-4711\nstate     scheduled\n\
             due       2027-01-31T11:00:00.000Z\ncreated   2027-01-31T10:00:00.000Z\n\
             attempts  0/6\nclaims    0\nheader    a: b\nheader    content-type: application/json\n\
             payload   application/json, 16 bytes\n{{\n  \"order\": 4711\n}}\n"
        ),
    );
    fixture.expect(
        &["jobs", "run", job[0], job[1], "--json"],
        "{\"due\":\"2027-01-31T10:00:00.000Z\",\"job\":\"key:order-4711\",\"queue\":\"ORDER_TIMEOUT\",\
         \"result\":\"moved\"}\n",
    );
    fixture.expect(&["jobs", "cancel", job[0], job[1]], "cancelled ORDER_TIMEOUT/key:order-4711\n");
    fixture.expect(
        &["jobs", "cancel", job[0], job[1]],
        "error: queue ORDER_TIMEOUT has no job key:order-4711\n\
         remedy: it may have ended: ended jobs are found if the program that ended them keeps a history (the setting `history`); by key, among the latest 5,000 of the queue\n\
         exit code 3\n",
    );
    for name in [id.as_str(), job[1]] {
        fixture.expect(
            &["where", job[0], name],
            "ORDER_TIMEOUT/order-4711   cancelled 0 ms ago\n  \
               10:00:00.000  scheduled\n  10:00:00.000  due\n  10:00:00.000  cancelled\n",
        );
    }
}

#[test]
fn where_tells_of_claims_retries_runners_and_slots() {
    let fixture = Fixture::new();
    let id = id_of(&fixture.run(&[
        "enqueue",
        "MAIL",
        "1",
        "--max-attempts",
        "6",
        "--json",
        "--due",
        "1s",
    ]));
    fixture.advance(1_004.millis());
    let verdict = Verdict::Retry {
        due: Due::After(60.seconds()),
        error: "connect refused\nby \u{1b}[31mhost".to_owned(),
    };
    fixture.settle("MAIL", "web-3", &verdict);
    for (name, running) in [("web-1", 4), ("web-2", 2)] {
        let started = fixture.clock.now().as_millis();
        let info = format!(
            r#"{{"format":1,"host":"h","pid":812,"version":"0.1.0","started":{started},
                "stopping":false,"concurrency":8,"running":{running},"skew_ms":null,
                "queues":[{{"queue":"MAIL","concurrency":4,"running":{running},
                "lateness":[],"run_time":[]}}],"omitted_queues":0}}"#
        );
        fixture.announce(name, info);
    }
    fixture.advance(19.seconds());
    fixture.expect(
        &["where", "MAIL", &id],
        &format!(
            "MAIL/{id}   scheduled, retry 1 of 5, due in 41 s\n  \
               10:00:00.000  scheduled\n  \
               -             failed, attempt 1: connect refused\\nby \u{fffd}[31mhost; retry at 10:01:01.004\n  \
               now           not due; 2 runners listen, 2 of 8 slots free\n"
        ),
    );
    fixture.expect(
        &["runners"],
        "RUNNER  HOST  PID  VERSION  RUNNING  STATE      QUEUES\n\
         web-1   h     812  0.1.0        4/8  listening  MAIL 4/4\n\
         web-2   h     812  0.1.0        2/8  listening  MAIL 2/4\n",
    );
    fixture.advance(1.minutes());
    fixture.claim("MAIL", "web-1");
    fixture.advance(3.seconds());
    let running = fixture.run(&["where", "MAIL", &id]);
    assert!(running.contains("running, retry 1 of 5, for 3 s"), "{running}");
    assert!(running.contains("10:01:20.004  claimed by web-1, 19 s late"), "{running}");
    assert!(
        running.ends_with("now           runs on web-1; 2 runners listen, 2 of 8 slots free\n")
    );
    fixture.expect(
        &["jobs", "cancel", "MAIL", &id],
        &format!(
            "error: job {id} is running\nremedy: a running job is not stopped; wait for its end\n\
             exit code 4\n"
        ),
    );
    for line in [&["where", "MAIL", &id][..], &["runners"], &["jobs", "get", "MAIL", &id]] {
        let json = fixture.run(&[line, &["--json"]].concat());
        assert!(json.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{json}");
    }
}

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

#[test]
fn jobs_are_listed_found_and_counted_before_many_change() {
    let (fixture, id) = with_dead();
    let listed = fixture.run(&["jobs", "ls"]);
    let lines: Vec<_> = listed.lines().collect();
    assert_eq!(lines.len(), 6, "{listed}");
    assert!(lines[0].starts_with("QUEUE  STATE      ID"), "{listed}");
    assert!(lines[1].starts_with(&format!("MAIL   ready      {id}")), "{listed}");
    assert!(lines[5].ends_with("1  SMTP 550: no such user"), "{listed}");
    assert_eq!(fixture.run(&["jobs", "ls", "MAIL", "--json", "--all"]).lines().count(), 5);
    let two = fixture.run(&["jobs", "ls", "MAIL", "--json", "--limit", "2"]);
    assert_eq!((two.lines().count(), two.contains("# there are more jobs")), (3, true), "{two}");
    let all = fixture.run(&["jobs", "ls", "MAIL", "--json", "--limit", "5"]);
    assert!(!all.contains("# there are more jobs"), "{all}");
    let states = fixture.run(&["jobs", "ls", "--json", "--state", "dead,ready", "--error", "550"]);
    assert_eq!(states.lines().count(), 3, "{states}");
    fixture.expect(&["jobs", "ls", "--contains", "eve"], "# no job matches\n");

    for (text, jobs) in [("a-", 3), ("letter", 3), ("bob", 1), (id.as_str(), 1)] {
        let found = fixture.run(&["jobs", "find", text, "--json"]);
        assert_eq!(found.lines().count(), jobs, "{text}: {found}");
    }
    assert_eq!(fixture.run(&["jobs", "find", "a-", "--json", "--limit", "2"]).lines().count(), 2);
    assert!(fixture.run(&["jobs", "find", "eve"]).ends_with("exit code 3\n"));

    fixture.expect(
        &["jobs", "replay", "MAIL", "--key-prefix", "a-"],
        "error: 2 jobs of MAIL can be replayed; nothing was changed\n\
         remedy: repeat the command with --yes\nexit code 2\n",
    );
    fixture.expect(
        &["jobs", "rm", "MAIL", "--key-prefix", "b-", "--yes", "--json"],
        "{\"action\":\"remove\",\"changed\":1,\"queue\":\"MAIL\"}\n# 1 job of MAIL can be removed\n",
    );
    // A live job has the key a-1 by now.
    fixture.expect(
        &["jobs", "replay", "MAIL", "--all", "--yes"],
        "replayed 1 job of MAIL\n# 2 jobs of MAIL can be replayed\n\
         # 1 job stayed as before: a live job has the key, or another command was first\n",
    );
    fixture.expect(
        &["jobs", "replay", "MAIL", "--all", "--yes"],
        "replayed 0 jobs of MAIL\n# 1 job of MAIL can be replayed\n\
         # 1 job stayed as before: a live job has the key, or another command was first\nexit code 4\n",
    );
    for yes in [&[][..], &["--yes"]] {
        fixture.expect(
            &[&["jobs", "replay", "MAIL", "--key-prefix", "x-"], yes].concat(),
            "error: no job of MAIL can be replayed: none matches\n\
             remedy: `dq jobs ls MAIL --state dead` lists them\nexit code 3\n",
        );
    }
    let misspelt = fixture.run(&["jobs", "cancel", "MIAL", "--all", "--yes"]);
    assert!(misspelt.starts_with("error: there is no queue MIAL\n"), "{misspelt}");
    assert!(misspelt.ends_with("exit code 3\n"), "{misspelt}");
    fixture.expect(
        &["jobs", "move", "MAIL", "--due-from", "2027-02-01T00:00:00Z", "--to", "2h", "--yes"],
        "moved 1 job of MAIL\n# 1 job of MAIL can be moved\n",
    );
    fixture.expect(
        &["jobs", "cancel", "MAIL", "--all", "--yes"],
        "cancelled 3 jobs of MAIL\n# 3 jobs of MAIL can be cancelled\n",
    );
}

#[test]
fn dead_jobs_are_replayed_and_removed_one_by_one() {
    let (fixture, id) = with_dead();
    let dead = fixture.run(&["jobs", "ls", "MAIL", "--state", "dead", "--json"]);
    let ids: Vec<_> = dead.lines().map(id_of).collect();
    fixture.expect(
        &["jobs", "replay", "MAIL", &ids[0]],
        &format!(
            "error: job {} stays dead: a live job has its key\n\
             remedy: replay it when that job has ended, or cancel that job\nexit code 4\n",
            ids[0]
        ),
    );
    fixture.expect(&["jobs", "replay", "MAIL", &ids[1]], &format!("replayed MAIL/{}\n", ids[1]));
    fixture.expect(
        &["jobs", "rm", "MAIL", &ids[2], "--json"],
        &format!("{{\"job\":\"{}\",\"queue\":\"MAIL\",\"result\":\"removed\"}}\n", ids[2]),
    );
    assert!(fixture.run(&["jobs", "rm", "MAIL", &id]).contains("is not dead but ready"));
    assert!(fixture.run(&["jobs", "replay", "MAIL", "key:a-1"]).ends_with("exit code 2\n"));
    let headline = fixture.run(&["where", "MAIL", &ids[0]]);
    assert!(headline.starts_with("MAIL/a-1   dead for 1 s\n"), "{headline}");
}

#[test]
fn queues_are_shown_paused_resumed_and_purged() {
    let (fixture, _) = with_dead();
    fixture.expect(
        &["queues"],
        "QUEUE  SCHEDULED  READY  RUNNING  DEAD  NEXT DUE                  OLDEST  RUNNERS  FREE  \
         P99 LATE  PAUSED\n\
         MAIL           1      1        0     3  2027-01-31T10:00:01.000Z    0 ms        0     0\n",
    );
    fixture.expect(&["pause", "MAIL"], "paused MAIL\n");
    fixture.expect(&["pause", "MAIL"], "MAIL is paused already\n");
    assert!(fixture.run(&["queues", "MAIL"]).ends_with("paused\n"));
    let misspelt = fixture.run(&["pause", "MIAL"]);
    assert!(misspelt.starts_with("error: there is no queue MIAL\n"), "{misspelt}");
    assert!(misspelt.contains("`dq pause --create`") && misspelt.ends_with("exit code 3\n"));
    assert_eq!(fixture.run(&["queues", "--json"]).lines().count(), 1, "it is not created");
    fixture.expect(&["pause", "SOON", "--create"], "paused SOON\n");
    fixture.expect(&["pause", "SOON"], "SOON is paused already\n");
    fixture.expect(&["resume", "SOON"], "resumed SOON\n");
    fixture.expect(
        &["resume", "MAIL", "--json"],
        "{\"changed\":true,\"paused\":false,\"queue\":\"MAIL\"}\n",
    );
    fixture.expect(&["resume", "MAIL"], "MAIL is not paused\n");
    fixture.expect(
        &["purge", "MAIL", "--confirm", "mail"],
        "# MAIL: 5 jobs would be deleted\n\
         error: the typed name is not MAIL\n\
         remedy: to confirm that its jobs go, give MAIL exactly: as `confirm` in the body of a request, \
         by `--confirm` of `dq purge`, or typed\nexit code 4\n",
    );
    fixture.expect(
        &["purge", "MAIL", "--confirm", "MAIL"],
        "deleted 5 jobs of MAIL\n# MAIL: 5 jobs would be deleted\n",
    );
    assert!(fixture.run(&["queues", "NOPE"]).ends_with("exit code 3\n"));
    assert!(fixture.run(&["jobs", "ls", "NOPE"]).ends_with("exit code 3\n"));
    fixture.expect(&["check"], "nothing to change\n");
}

#[test]
fn a_missed_lateness_objective_is_a_finding_with_cause_and_remedy() {
    let fixture = Fixture::new();
    let info = r#"{"format":1,"host":"h","pid":1,"version":"0.1.0","started":0,
        "stopping":false,"concurrency":4,"running":0,"skew_ms":0,"omitted_queues":0,"queues":[
        {"queue":"MAIL","concurrency":4,"running":4,"lateness":[],"run_time":[39,4],
        "objective":{"objective":"99% < 100ms","in_time":98,"late":1}}]}"#;
    fixture.announce("web-1", info.to_owned());
    fixture.run(&["enqueue", "MAIL"]);
    fixture.advance(100.millis());
    fixture.expect(
        &["check"],
        "warning  lateness.objective\n  \
           cause   jobs of queue MAIL are late: all slots are busy, and the handlers are slow; the \
         objective is 99% < 100ms; of 99 starts in the last hour 1 were late, and 1 late jobs wait\n  \
           remedy  make the handler quicker, set a shorter timeout, raise the concurrency, or add \
         runners\n",
    );
    let queue = fixture.run(&["queues", "MAIL", "--json"]);
    let objective =
        r#""objective":{"objective":"99% < 100ms","missed":true,"in_time":98,"late":1,"#;
    assert!(queue.contains(objective), "{queue}");
}

#[test]
fn names_and_payloads_of_any_kind_travel_through_the_api() {
    let fixture = Fixture::new();
    let (queue, key) = ("a/../b?c#d", "key:x/../y z");
    let line = ["enqueue", queue, "-1e300", "--key", "x/../y z", "--content-type", "text/x?&"];
    fixture.run(&[&line[..], &["--due", "1d"]].concat());
    let shown = fixture.run(&["jobs", "get", queue, key]);
    assert!(shown.ends_with("payload   text/x?&, 6 bytes\n-1e300\n"), "{shown}");
    assert!(fixture.run(&["where", queue, key]).starts_with("a/../b?c#d/x/../y z   scheduled"));
    fixture.expect(&["pause", queue], "paused a/../b?c#d\n");
    assert_eq!(
        fixture.run(&["jobs", "ls", queue, "--key-prefix", "x/..", "--json"]).lines().count(),
        1
    );
    for payload in
        ["null", "0.1", "1e-7", "123456789.12345679", "5e-324", "[18446744073709551615,-0.0]"]
    {
        let id = id_of(&fixture.run(&["enqueue", "FLOAT", payload, "--json"]));
        // Only the comparison of fixture outputs matters.
        fixture.run(&["jobs", "get", "FLOAT", &id, "--json"]);
    }
    fixture.expect(&["jobs", "cancel", queue, key], "cancelled a/../b?c#d/key:x/../y z\n");
}

#[test]
fn policies_of_keys_and_repeated_requests_are_reported() {
    let fixture = Fixture::new();
    let line = ["enqueue", "MAIL", "1", "--key", "k"];
    fixture.run(&line);
    let replaced = fixture.run(&[&line[..], &["--on-conflict", "replace"]].concat());
    assert!(replaced.contains("instead of the job that had its key"), "{replaced}");
    fixture.claim("MAIL", "web-1");
    let running = fixture.run(&line);
    assert!(running.contains("has the key and is running\nexit code 4\n"), "{running}");
    let repeated = ["enqueue", "CHARGE", "1", "--idempotency-key", "request-1"];
    fixture.run(&repeated);
    fixture.settle("CHARGE", "web-1", &Verdict::Done);
    let ended = fixture.run(&repeated);
    assert!(ended.contains("of the same request has ended"), "{ended}");
    fixture.expect(
        &["enqueue", "MAIL", "hello"],
        "error: the payload is not JSON: expected value at line 1 column 1\n\
         remedy: write a text as '\"text\"', or give --content-type text/plain\nexit code 2\n",
    );
    assert!(fixture.run(&["enqueue", "dq.x"]).ends_with("exit code 2\n"));
    assert!(fixture.run(&["enqueue", "A", "--remember", "soon"]).ends_with("exit code 2\n"));
    assert!(fixture.run(&["enqueue", "A", "--idempotency-key", ""]).ends_with("exit code 2\n"));
}

#[test]
fn an_empty_text_selects_nothing() {
    for option in ["--key-prefix", "--error"] {
        let line = ["dq", "jobs", "cancel", "MAIL", option, "", "--yes"];
        assert!(Args::try_parse_from(line).is_err(), "{option}");
    }
    assert!(Args::try_parse_from(["dq", "jobs", "ls", "MAIL", "--contains", ""]).is_err());
}

#[test]
fn a_command_takes_one_job_or_a_filter() {
    let (fixture, id) = with_dead();
    for rest in [
        &[][..],
        &[id.as_str(), "--all"],
        &[id.as_str(), "--yes"],
        &[id.as_str(), "--key-prefix", "a"],
        &["--all", "--key-prefix", "a"],
    ] {
        let refused = fixture.run(&[&["jobs", "cancel", "MAIL"], rest].concat());
        assert!(refused.ends_with("exit code 2\n"), "{rest:?}: {refused}");
    }
    assert_eq!(fixture.run(&["jobs", "ls", "--json"]).lines().count(), 5);
}
