use dq::prelude::*;

dq::queue!(ORDER_TIMEOUT: u64);

fn main() {
    let _ = async |dq: Dq| dq.schedule::<ORDER_TIMEOUT>(1).at(15.minutes()).await;
}
