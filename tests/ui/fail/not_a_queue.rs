use dq::Dq;

#[derive(serde::Serialize)]
struct Order;

fn schedule(dq: &Dq) {
    let _ = dq.schedule::<Order>(Order);
}

fn main() {}
