//! Handlers with all settings and with some.

use std::time::Duration;

use dq::config::BackoffSettings;
use dq::{Backoff, HandlerFn, delay_handler};

#[delay_handler(
    "ALL",
    max_attempts = 3,
    timeout = "1h 30m",
    lease = "1day",
    concurrency = 8,
    max_losses = 1,
    backoff(initial = "500ms", factor = 1, max = "1h", jitter = 0.0),
    crate = "::dq"
)]
async fn all() {}

#[delay_handler("SOME", timeout = "none", lease = "1s", backoff())]
async fn some() {}

#[delay_handler("FINE", timeout = "1500us", backoff(max = "1s", jitter = 1.0))]
async fn fine() {}

fn main() {
    let settings = all::settings();
    assert_eq!(settings.max_attempts, Some(3));
    assert_eq!(settings.timeout, Some(Duration::from_secs(5_400)));
    assert_eq!(settings.lease, Some(Duration::from_secs(86_400)));
    assert_eq!(settings.concurrency, Some(8));
    assert_eq!(settings.max_losses, Some(1));
    let backoff = Backoff {
        initial: Duration::from_millis(500),
        factor: 1.0,
        max: Duration::from_secs(3_600),
        jitter: 0.0,
    };
    assert_eq!(settings.backoff, backoff.into());

    let settings = some::settings();
    assert_eq!(settings.timeout, Some(Duration::MAX));
    assert_eq!(settings.max_attempts, None);
    assert_eq!(settings.backoff, BackoffSettings::new());

    let settings = fine::settings();
    assert_eq!(settings.timeout, Some(Duration::from_micros(1_500)));
    // The configuration decides the other settings.
    let backoff = BackoffSettings::new().max(Duration::from_secs(1)).jitter(1.0);
    assert_eq!(settings.backoff, backoff);
}
