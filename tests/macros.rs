//! Handlers from `#[delay_handler]`, run as in an application.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dq::prelude::*;
use dq::{Backoff, BoxError, DeadKind, ErrorKind, FromJob, HandlerFn, RawPayload, Registration};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn write(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    id: u64,
}

#[derive(QueueCode)]
enum Code {
    Books,
    #[queue_code("SMS")]
    SendTextMessage,
}

const REPORT: &str = "REPORT";

struct Tenant(String);

impl FromJob for Tenant {
    async fn from_job(ctx: &JobContext) -> Result<Self, BoxError> {
        let tenant = ctx.headers().get("tenant").ok_or("no tenant header")?;
        Ok(Self(tenant.to_owned()))
    }
}

#[delay_handler(
    "ORDER_TIMEOUT",
    max_attempts = 3,
    timeout = "30s",
    lease = "1m",
    concurrency = 8,
    max_losses = 2,
    backoff(initial = "5s", max = "1m")
)]
async fn order_timeout(
    ctx: JobContext,
    State(log): State<Log>,
    Tenant(tenant): Tenant,
    Order { id }: Order,
) -> HandlerResult {
    log.write(format!("order {id} of {tenant}, attempt {}", ctx.attempt()));
    Ok(Outcome::Done)
}
/// The line of `async fn order_timeout`.
const ORDER_TIMEOUT_LINE: u32 = line!() - 10;

#[delay_handler(Code::Books)]
async fn books(State(log): State<Log>, #[extract] Tenant(tenant): Tenant) {
    log.write(format!("books of {tenant}"));
}

#[delay_handler(Code::SendTextMessage, blocking)]
fn send_text_message(State(log): State<Log>, text: String) -> io::Result<()> {
    log.write(format!("{text} on {:?}", thread::current().id()));
    Ok(())
}

#[delay_handler(REPORT, timeout = "none")]
async fn report(State(log): State<Log>, RawPayload(bytes): RawPayload) -> Result<(), String> {
    log.write(format!("{bytes:?}"));
    Err("no paper".to_owned())
}

async fn runner(queues: &[&str], log: &Log) -> (Dq, dq::Runner) {
    let dq = Dq::connect("memory:").await.unwrap();
    let runner = dq.runner().state(log.clone()).only(queues).build().unwrap();
    (dq, runner)
}

#[test]
fn a_handler_has_its_name_and_source_location() {
    assert_eq!(order_timeout::NAME, "macros::order_timeout");
    assert_eq!(order_timeout::LOCATION, format!("tests/macros.rs:{ORDER_TIMEOUT_LINE}"));
    let handler = Registration::of::<order_timeout>().handlers().unwrap().remove(0);
    assert_eq!(
        format!("{handler:?}"),
        format!("ORDER_TIMEOUT → macros::order_timeout (tests/macros.rs:{ORDER_TIMEOUT_LINE})")
    );
}

#[test]
fn the_macro_assumes_the_default_backoff_of_the_core() {
    // The macro compares `initial` with `max`; it assumes these defaults for omitted ones.
    assert_eq!(Backoff::default().initial, Duration::from_secs(1));
    assert_eq!(Backoff::default().max, Duration::from_secs(600));
}

#[test]
fn the_macro_and_the_core_accept_the_same_codes() {
    // The longest code for the macro is the longest queue name.
    const LONGEST: &str = concat!(
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    );
    #[derive(QueueCode)]
    enum Long {
        #[queue_code(
            "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
        )]
        Longest,
    }
    assert_eq!(Long::Longest.code(), LONGEST);
    assert!(dq::QueueName::new(LONGEST).is_ok());
    assert!(dq::QueueName::new(format!("{LONGEST}0")).is_err());
}

#[tokio::test]
async fn arguments_are_extracted_and_results_recorded() {
    let log = Log::default();
    let (dq, runner) = runner(&["ORDER_TIMEOUT", "BOOKS", "SMS"], &log).await;
    let order = dq.schedule::<order_timeout>(Order { id: 7 }).header("tenant", "acme");
    assert!(matches!(order.await.unwrap(), Scheduled::Created(_)));
    let _ = dq.schedule::<books>(()).header("tenant", "acme").await.unwrap();
    let _ = dq.schedule::<send_text_message>("hello".to_owned()).await.unwrap();

    let ran = runner.run_due().await.unwrap();

    assert_eq!(ran.jobs, 3);
    let mut lines = log.lines();
    lines.sort();
    assert_eq!(lines[0], "books of acme");
    assert!(lines[1].starts_with("hello on ThreadId"), "{lines:?}");
    assert_ne!(
        lines[1],
        format!("hello on {:?}", thread::current().id()),
        "it runs on another thread"
    );
    assert_eq!(lines[2], "order 7 of acme, attempt 1");
}

#[tokio::test]
async fn an_undecodable_payload_is_dead_before_any_extractor_runs() {
    let log = Log::default();
    let (dq, runner) = runner(&["ORDER_TIMEOUT"], &log).await;
    let queue = dq.queue("ORDER_TIMEOUT").unwrap();
    let scheduled = queue.schedule("no order", "application/json").await.unwrap();

    runner.run_due().await.unwrap();

    let job = dq.get::<order_timeout>(scheduled.id()).await.unwrap();
    let job = job.expect("dead jobs are kept");
    let (reason, _) = job.dead.expect("it is dead");
    assert_eq!(reason.kind, DeadKind::Undecodable);
    assert!(log.lines().is_empty());
}

#[tokio::test]
async fn an_error_of_an_extractor_is_a_failed_attempt() {
    let log = Log::default();
    let (dq, runner) = runner(&["ORDER_TIMEOUT"], &log).await;
    let _ = dq.schedule::<order_timeout>(Order { id: 7 }).key("k").await.unwrap();

    runner.run_due().await.unwrap();

    let view = dq.get::<order_timeout>("k").await.unwrap().expect("it is retried");
    assert_eq!((view.state, view.job.attempts), (JobState::Scheduled, 1));
    assert!(log.lines().is_empty());
}

#[tokio::test]
async fn a_handler_without_payload_does_not_decode() {
    let log = Log::default();
    let (dq, runner) = runner(&["REPORT"], &log).await;
    let queue = dq.queue("REPORT").unwrap();
    let _ = queue.schedule("\u{1}not JSON", "text/plain").key("k").await.unwrap();

    runner.run_due().await.unwrap();

    assert_eq!(log.lines(), ["b\"\\x01not JSON\""]);
    let view = dq.get::<report>("k").await.unwrap().expect("it is retried");
    assert_eq!(view.job.attempts, 1, "the handler returned an error");
}

#[tokio::test]
async fn missing_state_is_an_error_of_build() {
    let dq = Dq::connect("memory:").await.unwrap();
    let error = dq.runner().only(["BOOKS"]).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingState);
    let text = error.to_string();
    for needle in ["macros::books at tests/macros.rs:", "State<macros::Log>", ".state(value)"] {
        assert!(text.contains(needle), "{needle} is missing in {text}");
    }
    // An `Arc` of it is another type.
    assert!(dq.runner().only(["BOOKS"]).state(Arc::new(Log::default())).build().is_err());
    assert!(dq.runner().only(["BOOKS"]).state(Log::default()).build().is_ok());
}
