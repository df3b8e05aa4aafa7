//! A job runs with the payload that the log has, whatever messages bring.

use std::time::Duration;

use dq_core::{
    Backend, Due, NewJob, Operation, Reschedule, Rescheduled, Scheduled, Settled, Settlement,
    Verdict,
};

use crate::fixture::{
    after, amqp_client, by_id, claim, claim_until_some, config, in_an_hour, job, open, pass_marker,
    publish, queue, take_message,
};

fn again(millis: u64, payload: &'static str) -> Verdict {
    Verdict::Again { due: Due::After(Duration::from_millis(millis)), payload: payload.into() }
}

fn with_headers(mut job: NewJob) -> NewJob {
    job.headers.insert("colour", "red");
    job
}

/// Claims the job, which must have this payload, and settles it.
async fn settle(backend: &dyn Backend, payload: &str, verdict: Verdict) {
    let claimed = claim_until_some(backend, "q").await;
    let leased = &claimed.jobs[0];
    assert_eq!(leased.job.payload, payload);
    assert_eq!(leased.job.headers.get("colour"), Some("red"));
    let settled = backend.settle(&[Settlement::new(leased.lease(), verdict)]).await;
    assert_eq!(settled.unwrap(), [Settled::Accepted]);
}

/// The settling process has the headers only from its replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_can_settle_a_next_step() {
    let config = config("stepper");
    let (claimer, settler) = (open(&config).await, open(&config).await);
    claimer.schedule(vec![with_headers(job("q")).payload("first")]).await.unwrap();
    for (payload, next) in [("first", "second"), ("second", "third")] {
        let claimed = claim_until_some(&*claimer, "q").await;
        assert_eq!(claimed.jobs[0].job.payload, payload);
        let settlement = Settlement::new(claimed.jobs[0].lease(), again(0, next));
        assert_eq!(settler.settle(&[settlement]).await.unwrap(), [Settled::Accepted]);
    }
    settle(&*settler, "third", Verdict::Done).await;
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
    settle(&*backend, "first", again(0, "second")).await;
    let name = queue("q");
    backend.operate(Operation::Pause { queue: &name }).await.unwrap();
    let _wakeups = backend.listen(std::slice::from_ref(&name)).await.unwrap();
    let key = late.routing_key.as_str();
    publish(&channel, "dq.v1.due", key, &late.data, late.properties.clone()).await;
    pass_marker(&channel, key).await;
    backend.operate(Operation::Resume { queue: &name }).await.unwrap();
    settle(&*backend, "second", Verdict::Done).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_scheduled_again_keeps_its_payload() {
    let config = config("same-id");
    let backend = open(&config).await;
    // Consumes messages.
    let _wakeups = backend.listen(&[queue("q")]).await.unwrap();
    let new = after(1_500, with_headers(job("q")));
    for payload in ["first", "second"] {
        let result = backend.schedule(vec![new.clone().payload(payload)]).await.unwrap();
        assert!(matches!(result[..], [Scheduled::Created(_)]), "{result:?}");
    }
    settle(&*backend, "first", Verdict::Done).await;
    let result = backend.schedule(vec![new.payload("third")]).await.unwrap();
    assert!(matches!(result[..], [Scheduled::Ended(_)]), "{result:?}");
}

/// Without a message, no other process can have the payload.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_made_due_is_claimed_at_once() {
    let config = config("made-due");
    let (claimer, settler) = (open(&config).await, open(&config).await);
    let moved = in_an_hour(with_headers(job("q")).payload("moved"));
    claimer.schedule(vec![with_headers(job("q")).payload("first"), moved.clone()]).await.unwrap();
    let claimed = claim_until_some(&*claimer, "q").await;
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
    let findings = settler.check().await;
    let gauges = findings.iter().find(|finding| finding.code == "rabbitmq.gauges").unwrap();
    let expected = " 0 jobs were claimed before their messages";
    assert!(gauges.cause.contains(expected), "{findings:?}");
}
