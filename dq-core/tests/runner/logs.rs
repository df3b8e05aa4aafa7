//! Log output: spans, handler table, warnings; no payloads.

use dq_core::{DurationExt, Entropy, Outcome, TraceContext};

use crate::runner::fixture::{Fixture, QUEUE, TestHandler};
use crate::runner::log_lines::log_lines;

async fn with_unserved_job() -> Fixture {
    let fixture = Fixture::new().await;
    let unserved = fixture.dq.queue("UNSERVED").unwrap();
    assert!(unserved.schedule("x", "text/plain").await.unwrap().is_stored());
    fixture
}

#[tokio::test]
async fn spans_handler_table_and_warnings_name_queue_job_and_location() {
    let trace = TraceContext::root(&Entropy::seeded(1));
    let mut fixture = with_unserved_job().await;
    let job = fixture.queue().schedule(r#""secret payload""#, "application/json");
    let job = job.header("traceparent", trace.to_string()).await.unwrap();
    fixture.clock.advance(7.millis());
    fixture.run(TestHandler::new(async |_, _| {
        tracing::info!("logged by the handler");
        Ok(Outcome::Done)
    }));
    fixture.wait_settled().await;
    while !log_lines().contains("queue=UNSERVED") {
        tokio::task::yield_now().await;
    }
    fixture.stop().await;
    let text = log_lines();
    let line = text.lines().find(|line| line.contains("logged by the handler")).unwrap();
    for needle in [
        "queue=Q".to_owned(),
        format!("id={}", job.id()),
        "attempt=1".to_owned(),
        "lateness_ms=7".to_owned(),
        format!("{:032x}", trace.trace_id),
    ] {
        assert!(line.contains(&needle), "{needle} is missing in {line}");
    }
    assert!(text.contains("fixture.rs:"), "the table of handlers has the source location: {text}");
    let warning = text.lines().find(|line| line.contains("queue=UNSERVED")).unwrap();
    assert!(warning.contains("use my_handlers as _;"), "{warning}");
    assert!(!text.contains("secret payload"), "payloads are not logged");
}

#[tokio::test]
async fn a_runner_for_some_queues_does_not_warn_of_others() {
    let mut fixture = with_unserved_job().await;
    fixture.start(|runner| runner.handler(TestHandler::done()).only([QUEUE]));
    fixture.pass(1.hours()).await;
    fixture.stop().await;
    assert!(!log_lines().contains("UNSERVED"), "{}", log_lines());
}
