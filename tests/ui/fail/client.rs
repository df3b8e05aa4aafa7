use dq::prelude::*;

dq::queue!(ORDER_TIMEOUT: u64);

#[derive(serde::Serialize)]
struct NoQueue;

fn snooze_without_unit() -> Outcome {
    Outcome::snooze(60)
}

async fn calls(dq: Dq) {
    let _ = dq.reschedule::<ORDER_TIMEOUT>("order-1", 60).await;
    let _ = dq.schedule::<ORDER_TIMEOUT>(1).at(15.minutes()).await;
    let _ = dq.schedule::<ORDER_TIMEOUT>(1).key(1.5).await;
    let _ = dq.schedule::<NoQueue>(NoQueue);
    let _ = dq.schedule::<ORDER_TIMEOUT>(NoQueue);
}

fn main() {}
