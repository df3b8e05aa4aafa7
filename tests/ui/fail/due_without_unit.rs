use dq::{Dq, Outcome};

dq::queue!(ORDER_TIMEOUT: u64);

fn snooze() -> Outcome {
    Outcome::snooze(60)
}

async fn reschedule(dq: &Dq) {
    let _ = dq.reschedule::<ORDER_TIMEOUT>("order-1", 60).await;
}

fn main() {}
