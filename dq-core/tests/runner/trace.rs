//! Middleware, and the trace that goes with a job.

use std::sync::{Arc, Mutex};

use dq_core::{
    Dq, JobContext, JobError, JobResult, Middleware, Next, Outcome, TraceContext, async_trait,
};

use crate::rig::{Handle, QUEUE, Rig};

struct Note(&'static str, Arc<Mutex<Vec<String>>>);

#[async_trait]
impl Middleware for Note {
    async fn call(&self, job: JobContext, next: Next<'_>) -> JobResult {
        self.1.lock().unwrap().push(format!("{} before", self.0));
        let result = next.run(job).await;
        let result_text = match &result {
            Err(JobError::Panicked(message)) => message.clone(),
            other => format!("{other:?}"),
        };
        self.1.lock().unwrap().push(format!("{} after: {result_text}", self.0));
        Ok(Outcome::skip("said the middleware"))
    }
}

#[tokio::test]
async fn middleware_runs_around_the_handler_and_has_the_last_word() {
    let mut rig = Rig::new().await;
    rig.schedule("x").await;
    let notes = Arc::default();
    let (outer, inner) = (Note("outer", Arc::clone(&notes)), Note("inner", Arc::clone(&notes)));
    rig.start(|runner| {
        runner.middleware(outer).middleware(inner).handler(Handle::new(async |_, _| panic!("boom")))
    });
    assert_eq!(rig.until_finished().await, "Skip");
    rig.stop().await;
    assert_eq!(
        *notes.lock().unwrap(),
        [
            "outer before",
            "inner before",
            "inner after: boom",
            "outer after: Ok(Skip(\"said the middleware\"))"
        ]
    );
}

#[tokio::test]
async fn a_job_that_a_handler_schedules_belongs_to_the_same_trace() {
    let mut rig = Rig::new().await;
    let queue = rig.dq.queue(QUEUE).unwrap();
    let root = TraceContext::root(&dq_core::Entropy::seeded(9));
    let first =
        queue.schedule(r#""first""#, "application/json").header("traceparent", root.to_string());
    assert!(first.await.unwrap().is_stored());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let see = Arc::clone(&seen);
    rig.start(|runner| {
        runner.handler(Handle::new(move |job, payload| {
            let see = Arc::clone(&see);
            async move {
                see.lock().unwrap().push(TraceContext::from_headers(job.headers()).unwrap());
                if payload == "first" {
                    let queue = job.state::<Dq>().unwrap().queue(QUEUE)?;
                    let _ = queue.schedule(r#""second""#, "application/json").await?;
                }
                Ok(Outcome::Done)
            }
        }))
    });
    rig.until_settled().await;
    rig.until_settled().await;
    rig.stop().await;
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0], root);
    assert_eq!(seen[1].trace_id, root.trace_id);
    assert_ne!(seen[1].parent_id, root.parent_id);
}
