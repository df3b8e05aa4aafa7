use dq::{QueueCode, delay_handler};

#[delay_handler("dq.x")]
async fn reserved() {}

#[delay_handler("A", aliases = ["dq.old"])]
async fn reserved_alias() {}

#[delay_handler("B", late(after = "1m", then = "queue:dq.late"))]
async fn reserved_queue() {}

#[derive(QueueCode)]
enum Code {
    #[queue_code("dq.schedules")]
    ScheduleJobs,
}

fn main() {}
