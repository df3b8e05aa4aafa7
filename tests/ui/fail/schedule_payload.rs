//! Jobs from a handler's schedule have the default payload.

use dq::prelude::*;

#[derive(serde::Serialize, serde::Deserialize)]
struct Region(String);

#[delay_handler("SYNC", every = "90s")]
async fn sync(region: Region) {
    let _ = region.0;
}

fn main() {}
