//! Guide: limits.

use dq::Flow;
use dq::prelude::*;
use dq_testkit::TestKit;

#[derive(Debug)]
struct ProviderError;

impl std::fmt::Display for ProviderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("429 Too Many Requests")
    }
}

impl std::error::Error for ProviderError {}

impl ProviderError {
    fn is_too_many_requests(&self) -> bool {
        true
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Sms;

#[derive(Clone)]
struct Provider;

impl Provider {
    async fn send(&self, _sms: &Sms) -> Result<(), ProviderError> {
        Err(ProviderError)
    }
}

#[delay_handler("SEND_SMS", max_running = 3, rate = "10/1s")]
async fn send_sms(State(provider): State<Provider>, sms: Sms) -> HandlerResult {
    match provider.send(&sms).await {
        Err(error) if error.is_too_many_requests() => Ok(Outcome::throttle(30.seconds())),
        result => Ok(result.map(|_| Outcome::Done)?),
    }
}

async fn override_limits(dq: &Dq) -> dq::Result<()> {
    let queue = dq.queue_of::<send_sms>()?;
    queue.override_limits(Flow::UNLIMITED.max_running(1)).await?;
    queue.remove_override().await?; // the declared limits count again
    Ok(())
}

#[tokio::test]
async fn a_throttled_queue_is_closed_and_declared_limits_are_shown() -> dq::Result<()> {
    let kit = TestKit::with(|runner| runner.only(["SEND_SMS"]).state(Provider)).await?;
    for _ in 0..2 {
        let _ = kit.dq().schedule::<send_sms>(Sms).await?;
    }
    let ran = kit.advance(1.seconds()).await;
    assert_eq!(ran.iter().map(|run| run.outcome()).collect::<Vec<_>>(), ["throttled"]);
    assert!(kit.advance(28.seconds()).await.is_empty());
    assert_eq!(kit.advance(2.seconds()).await[0].outcome(), "throttled");

    let queue = kit.dq().queue_of::<send_sms>()?;
    let flow = queue.stats().await?.flow;
    assert_eq!(flow.in_force().to_string(), "max_running 3, rate 10/1s");
    override_limits(kit.dq()).await?;
    assert_eq!(queue.stats().await?.flow.overriding, None);
    Ok(())
}
