//! Ingress processes are killed between every two steps.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use dq_core::config::Config;
use dq_core::{Dq, Ingress};
use dq_servers::{Redis, Reply, shared_rabbitmq};
use dq_sqlite as _;
use lapin::BasicProperties;
use lapin::options::ConfirmSelectOptions;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use super::fixture::{Collector, LIMIT, publish, until};
use crate::broker::{channel, declare, take};

const CONFIG: &str = "INGRESS_TEST_CONFIG";
const STEP: &str = "INGRESS_TEST_STEP";
const COUNT: &str = "INGRESS_TEST_COUNT";
const REACHED: &str = "the step is reached";

/// Messages sent before each kill; one of them cannot become a job.
const MESSAGES: usize = 10;
/// A process is killed after this many repetitions of a step.
const KILLS: [(&str, usize); 9] = [
    ("received", 1),
    ("mapped", 1),
    ("mapped", 6),
    ("stored", 1),
    ("stored", 6),
    ("stored", MESSAGES - 1),
    ("acknowledged", 1),
    ("acknowledged", 6),
    ("set aside", 1),
];

/// A tracing layer that stops the process at the given repetition of a step.
struct StopAt {
    step: String,
    /// Repetitions left before the stop.
    left: AtomicUsize,
}

struct StepOf(String);

impl Visit for StepOf {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "step" {
            self.0 = value.to_owned();
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
}

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for StopAt {
    fn on_event(&self, event: &tracing::Event<'_>, _context: Context<'_, S>) {
        if event.metadata().target() != "dq_forward::ingress::step" {
            return;
        }
        let mut step = StepOf(String::new());
        event.record(&mut step);
        if step.0 == self.step && self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            println!("{REACHED}");
            // The parent kills this process.
            loop {
                std::thread::park();
            }
        }
    }
}

/// Runs ingresses on a single runtime thread, so that no further step happens after the stop.
/// SQLite's and the AMQP client's threads finish their current work.
#[tokio::test]
#[ignore = "a process that other tests start"]
async fn process() {
    let variable = |name| std::env::var(name).expect("this test is started by another test");
    let left = variable(COUNT).parse().unwrap();
    tracing_subscriber::registry()
        .with(StopAt { step: variable(STEP), left: AtomicUsize::new(left) })
        .init();
    let config = Config::from_path(variable(CONFIG)).unwrap();
    let dq = Dq::builder().config(config).connect().await.unwrap();
    Ingress::new(&dq).unwrap().run_until(std::future::pending::<()>()).await;
}

struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Process {
    fn start(config: &Path, (step, count): (&str, usize)) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "ingress::killed::process", "--nocapture"]);
        command.env(CONFIG, config).env(STEP, step).env(COUNT, count.to_string());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The test may have ended.
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    /// Sends SIGKILL once the process has stopped at its step.
    fn kill_when_stopped(self, kill: (&str, usize)) {
        loop {
            match self.lines.recv_timeout(LIMIT) {
                Ok(line) if line.contains(REACHED) => return,
                Ok(_) => {}
                Err(error) => panic!("{kill:?} was not reached: {error}"),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The body also names the message.
fn body(number: usize) -> String {
    match number % MESSAGES {
        4 => format!("no JSON {number}"),
        _ => format!("{{\"n\":{number},\"delay\":0}}"),
    }
}

/// Returns the bodies that become jobs, and the others.
fn bodies(messages: usize) -> (BTreeSet<String>, BTreeSet<String>) {
    (0..messages).map(body).partition(|body| body.starts_with('{'))
}

/// Kills a process at each step that the source has, then lets a process take the rest. Each
/// message must become one job. Returns the bodies that must have been set aside.
async fn killed_at_every_step(
    ingress: &str,
    has_step: impl Fn(&str) -> bool,
    send: impl AsyncFn(usize),
    is_drained: impl AsyncFn() -> bool,
) -> BTreeSet<String> {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("dq.toml");
    // Without a history, only a pinned id recognizes a message after its job ended.
    let store = format!(
        "[backend]\ntype = \"sqlite\"\npath = {:?}\n[defaults]\nhistory = 0\n",
        dir.path().join("jobs.db").to_str().unwrap()
    );
    let text = format!(
        "{store}[[ingress]]\nqueue = \"Q\"\nfrom = \"in\"\n\
         delay = \"/delay\"\n{ingress}"
    );
    std::fs::write(&config, text).unwrap();
    let store = Config::from_toml(&store).unwrap();
    let dq = Dq::builder().config(store).connect().await.unwrap();
    let collector = Collector::of(&dq);
    let all_ended = async || {
        let stats = dq.queue("Q").unwrap().stats().await.unwrap();
        stats.scheduled + stats.ready + stats.running == 0
    };
    let mut sent = 0;
    for kill in KILLS.into_iter().filter(|(step, _)| has_step(step)) {
        for _ in 0..MESSAGES {
            send(sent).await;
            sent += 1;
        }
        let process = Process::start(&config, kill);
        tokio::task::block_in_place(|| process.kill_when_stopped(kill));
        until("the jobs that are stored end", &all_ended).await;
    }
    let (jobs, aside) = bodies(sent);
    let _last = Process::start(&config, ("none", 1));
    collector.wait(jobs.len()).await;
    until("all messages are acknowledged", &is_drained).await;
    until("the jobs that are stored end", &all_ended).await;
    assert_eq!(collector.payloads(), Vec::from_iter(jobs), "each once");
    aside
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_amqp_message_becomes_one_job() {
    let url = shared_rabbitmq().vhost("ingress-killed");
    let channel = channel(&url).await;
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    declare(&channel, "in").await;
    let send = async |number| {
        let properties = BasicProperties::default().with_message_id(format!("m{number}").into());
        publish(&channel, "in", &body(number), properties).await;
    };
    let vhost = url.rsplit('/').next().unwrap();
    // Includes unacknowledged messages.
    let is_drained = async || {
        let list = ["-q", "list_queues", "-p", vhost, "name", "messages", "--no-table-headers"];
        let queues = tokio::task::block_in_place(|| shared_rabbitmq().ctl(&list));
        queues.lines().any(|line| line.split_whitespace().eq(["in", "0"]))
    };
    let ingress = format!("type = 'amqp'\nurl = '{url}'");
    let mut expected = killed_at_every_step(&ingress, |_| true, send, is_drained).await;
    // A message set aside before a kill is set aside again.
    let mut seen = BTreeSet::new();
    while let Some((_, body)) = take(&channel, "in.unmapped").await {
        let body = String::from_utf8(body).unwrap();
        assert!(expected.remove(&body) || seen.contains(&body), "{body}");
        seen.insert(body);
    }
    assert!(expected.is_empty(), "lost: {expected:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_list_element_becomes_one_job() {
    let redis = Redis::start();
    let send = async |number| {
        redis.command(&["LPUSH", "in", &body(number)]).int();
    };
    let is_drained = async || redis.command(&["EXISTS", "in", "in.taking"]).int() == 0;
    let ingress = format!("type = 'redis-list'\nurl = '{}'", redis.url());
    // Redis sets an element aside and acknowledges it in one step.
    let has_step = |step: &str| step != "set aside";
    let expected = killed_at_every_step(&ingress, has_step, send, is_drained).await;
    let aside = redis.command(&["LRANGE", "in.unmapped", "0", "-1"]);
    let mut aside: Vec<String> = aside.list().iter().map(Reply::text).collect();
    aside.sort();
    assert_eq!(aside, Vec::from_iter(expected), "each once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_stream_entry_becomes_one_job() {
    let redis = Redis::start();
    let send = async |number| {
        redis.command(&["XADD", "in", "*", "payload", &body(number)]).text();
    };
    let is_drained = async || redis.command(&["XPENDING", "in", "dq"]).list()[0].int() == 0;
    let ingress = format!("type = 'redis-stream'\nurl = '{}'", redis.url());
    let expected = killed_at_every_step(&ingress, |_| true, send, is_drained).await;
    let aside = redis.command(&["XRANGE", "in.unmapped", "-", "+"]);
    // A message set aside before a kill is set aside again.
    let aside: BTreeSet<String> =
        aside.list().iter().map(|entry| entry.list()[1].list().last().unwrap().text()).collect();
    assert_eq!(aside, expected);
    let consumers = redis.command(&["XINFO", "CONSUMERS", "in", "dq"]);
    assert_eq!(consumers.list().len(), 1, "killed processes leave no consumers behind");
}
