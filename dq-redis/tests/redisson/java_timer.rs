//! Java's clients set their timer to the time in each message on the queue's channel, whatever it
//! was before. So no message may have a later time than the first job of Redisson's sorted set, and
//! each job that becomes the first needs a message.

use std::time::Duration;

use dq_core::{Due, JobRef, LeasedJob, Operation, Reschedule, Verdict};

use crate::common::{HOUR, queue, settle};
use crate::redisson::fixture::{Fixture, job};

const CHANNEL: &str = "redisson_delay_queue_channel:{q}";

async fn claimed(fixture: &Fixture) -> LeasedJob {
    fixture.schedule(vec![job(Due::NOW, "retried")]).await;
    fixture.claim(1).await.remove(0)
}

async fn retry(fixture: &Fixture, leased: &LeasedJob, due: Due) {
    settle(&*fixture.backend, leased, Verdict::retry(due, "no")).await;
}

#[tokio::test]
async fn no_message_has_a_later_time_than_that_of_the_first_member() {
    let fixture = Fixture::with("").await;
    let backend = &fixture.backend;
    let leased = claimed(&fixture).await;
    let first = job(Duration::from_secs(60), "first");
    backend.schedule(vec![first.clone()]).await.unwrap();
    let due = backend.get(&JobRef::new(queue(), first.id)).await.unwrap().unwrap().job.due;

    let mut channel = fixture.redis.connect();
    channel.command(&["SUBSCRIBE", CHANNEL]);
    retry(&fixture, &leased, Due::After(HOUR)).await;
    let moved = Reschedule { job: JobRef::new(queue(), leased.job.id), due: Due::After(HOUR) };
    backend.reschedule(&[moved]).await.unwrap();
    backend.operate(Operation::Pause { queue: &queue() }).await.unwrap();
    backend.operate(Operation::Resume { queue: &queue() }).await.unwrap();
    fixture.redis.command(&["PUBLISH", CHANNEL, "end"]);
    let mut messages = 0;
    loop {
        let message = channel.receive().list()[2].text();
        if message == "end" {
            break;
        }
        let time: i64 = message.parse().unwrap();
        assert!(time <= due.as_millis(), "{time} is after {due}");
        messages += 1;
    }
    assert_eq!(messages, 1, "that of the queue that was resumed");
}

#[tokio::test]
async fn a_job_that_java_can_take_is_told_although_another_one_is_overdue() {
    let fixture = Fixture::with("").await;
    let backend = &fixture.backend;
    let leased = claimed(&fixture).await;
    retry(&fixture, &leased, Due::NOW).await;

    let mut channel = fixture.redis.connect();
    channel.command(&["SUBSCRIBE", CHANNEL]);
    let next = job(HOUR, "next");
    backend.schedule(vec![next.clone()]).await.unwrap();
    let due = backend.get(&JobRef::new(queue(), next.id)).await.unwrap().unwrap().job.due;
    assert_eq!(channel.receive().list()[2].text(), due.as_millis().to_string());
}
