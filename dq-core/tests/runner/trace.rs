//! Middleware, and the jobs' trace context.

use std::sync::{Arc, Mutex};

use dq_core::{
    DelayHandler, Dq, HandlerResult, JobContext, JobError, JobResult, Middleware, Next, Outcome,
    QueueCode, TraceContext, async_trait,
};

use crate::runner::fixture::{Fixture, QUEUE, TestHandler};

struct Recorder(&'static str, Arc<Mutex<Vec<String>>>);

#[async_trait]
impl Middleware for Recorder {
    async fn call(&self, job: JobContext, next: Next<'_>) -> JobResult {
        self.1.lock().unwrap().push(format!("{} before", self.0));
        let result = next.run(job).await;
        let result_text = match &result {
            Err(JobError::Panicked(message)) => message.clone(),
            other => format!("{other:?}"),
        };
        self.1.lock().unwrap().push(format!("{} after: {result_text}", self.0));
        Ok(Outcome::skip("skipped by the middleware"))
    }
}

#[tokio::test]
async fn middleware_runs_around_the_handler_and_determines_the_result() {
    let mut fixture = Fixture::new().await;
    fixture.schedule("x").await;
    let calls = Arc::default();
    let [outer, inner] = ["outer", "inner"].map(|name| Recorder(name, Arc::clone(&calls)));
    let handler = TestHandler::new(async |_, _| panic!("boom"));
    fixture.start(|runner| runner.middleware(outer).middleware(inner).handler(handler));
    assert_eq!(fixture.wait_finished().await, "Skip");
    fixture.stop().await;
    let wanted = [
        "outer before",
        "inner before",
        "inner after: boom",
        "outer after: Ok(Skip(\"skipped by the middleware\"))",
    ];
    assert_eq!(*calls.lock().unwrap(), wanted);
}

async fn schedule_a_second(
    job: &JobContext,
    payload: &str,
    recorded: &Mutex<Vec<TraceContext>>,
) -> HandlerResult {
    let context = TraceContext::from_headers(job.headers()).unwrap();
    recorded.lock().unwrap().push(context);
    if payload == "first" {
        let queue = job.state::<Dq>().unwrap().queue(QUEUE)?;
        let _ = queue.schedule(r#""second""#, "application/json").await?;
    }
    Ok(Outcome::Done)
}

struct OnAThread(Arc<Mutex<Vec<TraceContext>>>);

impl DelayHandler for OnAThread {
    type Payload = String;
    const BLOCKING: bool = true;

    fn code(&self) -> impl QueueCode {
        QUEUE
    }

    async fn handle(&self, job: JobContext, payload: String) -> HandlerResult {
        let span = tracing::Span::current();
        assert_eq!(span.metadata().map(|metadata| metadata.name()), Some("job"));
        schedule_a_second(&job, &payload, &self.0).await
    }
}

#[tokio::test]
async fn a_job_that_a_handler_schedules_belongs_to_the_same_trace() {
    for blocking in [false, true] {
        let mut fixture = Fixture::new().await;
        let root = TraceContext::root(&dq_core::Entropy::seeded(9));
        let first = fixture.queue().schedule(r#""first""#, "application/json");
        assert!(first.header("traceparent", root.to_string()).await.unwrap().is_stored());
        let contexts = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&contexts);
        fixture.start(|runner| match blocking {
            true => runner.handler(OnAThread(recorded)),
            false => runner.handler(TestHandler::new(move |job, payload| {
                let recorded = Arc::clone(&recorded);
                async move { schedule_a_second(&job, &payload, &recorded).await }
            })),
        });
        fixture.wait_settled().await;
        fixture.wait_settled().await;
        fixture.stop().await;
        let contexts = contexts.lock().unwrap();
        let [first, second] = contexts[..] else { panic!("two jobs run: {contexts:?}") };
        assert_eq!((first, second.trace_id), (root, root.trace_id), "blocking: {blocking}");
        assert_ne!(second.parent_id, root.parent_id);
    }
}
