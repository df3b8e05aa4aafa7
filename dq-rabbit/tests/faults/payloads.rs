//! A job runs with the payload that the log has, whatever messages bring.

use std::time::Duration;

use dq_core::{
    Backend, Due, NewJob, Operation, Reschedule, Rescheduled, Settled, Settlement, Verdict,
};

use crate::fixture::{
    LONG_LEASE, amqp_client, by_id, claim, claim_until_some, config, finding, in_an_hour, job,
    open, pass_marker, publish, queue, take_message,
};

fn with_headers(mut job: NewJob) -> NewJob {
    job.headers.insert("colour", "red");
    job
}

async fn settle(backend: &dyn Backend, payload: &str, verdict: Verdict) {
    let claimed = claim_until_some(backend, "q", LONG_LEASE).await;
    let leased = &claimed.jobs[0];
    assert_eq!(leased.job.payload, payload);
    assert_eq!(leased.job.headers.get("colour"), Some("red"));
    let settled = backend.settle(&[Settlement::new(leased.lease(), verdict)]).await;
    assert_eq!(settled.unwrap(), [Settled::Accepted]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_message_does_not_bring_back_an_earlier_step() {
    let config = config("late-step");
    let backend = open(&config).await;
    let new = with_headers(job("q")).payload("first");
    backend.schedule(vec![in_an_hour(new.clone())]).await.unwrap();
    let (_connection, channel) = amqp_client(config.url.expose()).await;
    // Level 2 counts quarters of an hour.
    let late = take_message(&channel, &["dq.v1.l2.4", "dq.v1.l2.3"]).await;
    let now = [Reschedule { job: by_id(&new), due: Due::NOW }];
    assert!(matches!(backend.reschedule(&now).await.unwrap()[..], [Rescheduled::Moved(_)]));
    let again = Verdict::Again { due: Due::NOW, payload: "second".into() };
    settle(&*backend, "first", again).await;

    let name = queue("q");
    backend.operate(Operation::Pause { queue: &name }).await.unwrap();
    let _wakeups = backend.listen(std::slice::from_ref(&name), "test").await.unwrap();
    let key = late.routing_key.as_str();
    publish(&channel, "dq.v1.due", key, &late.data, late.properties.clone()).await;
    pass_marker(&channel, key).await;
    backend.operate(Operation::Resume { queue: &name }).await.unwrap();
    settle(&*backend, "second", Verdict::Done).await;
}

/// Without a message, no other process can have the payload.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_made_due_is_claimed_at_once() {
    let config = config("made-due");
    let (claimer, settler) = (open(&config).await, open(&config).await);
    let moved = in_an_hour(with_headers(job("q")).payload("moved"));
    claimer.schedule(vec![with_headers(job("q")).payload("first"), moved.clone()]).await.unwrap();
    let claimed = claim_until_some(&*claimer, "q", LONG_LEASE).await;
    // For two seconds, all processes count as having it.
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    let retry = Settlement::new(claimed.jobs[0].lease(), Verdict::retry(Due::NOW, "a reason"));
    assert_eq!(settler.settle(&[retry]).await.unwrap(), [Settled::Accepted]);
    let claimed = claim(&*settler, "q", 1).await.unwrap();
    assert_eq!(claimed.jobs[0].job.payload, "first");
    let moves = [Reschedule { job: by_id(&moved), due: Due::NOW }];
    assert!(matches!(settler.reschedule(&moves).await.unwrap()[..], [Rescheduled::Moved(_)]));
    let claimed = claim(&*settler, "q", 1).await.unwrap();
    assert_eq!(claimed.jobs[0].job.payload, "moved");
    let gauges = finding(&*settler, "rabbitmq.gauges").await.unwrap();
    assert!(gauges.cause.contains(" 0 jobs were claimed before their messages"), "{gauges}");
}
