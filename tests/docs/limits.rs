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

#[derive(Clone)]
struct Bank;

impl Bank {
    async fn charge(&self, _order: u64) -> Result<(), ProviderError> {
        Ok(())
    }
}

#[delay_handler("CHARGE_CARD", max_running = 3)]
async fn charge_card(State(bank): State<Bank>, order: u64) -> HandlerResult {
    bank.charge(order).await?;
    Ok(Outcome::Done)
}

#[delay_handler("SEND_SMS", rate = "10/1s")]
async fn send_sms(State(provider): State<Provider>, sms: Sms) -> HandlerResult {
    match provider.send(&sms).await {
        Ok(()) => Ok(Outcome::Done),
        Err(error) if error.is_too_many_requests() => Ok(Outcome::throttle(30.seconds())),
        Err(error) => Err(error.into()),
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Row;

#[delay_handler("IMPORT_ROW", group_max_running = 2)]
async fn import_row(_row: Row) -> HandlerResult {
    Ok(Outcome::Done)
}

#[tokio::test]
async fn groups_take_turns() -> dq::Result<()> {
    let kit = TestKit::with(|runner| runner.only(["IMPORT_ROW"])).await?;
    let (dq, row) = (kit.dq(), Row);
    let scheduled = dq.schedule::<import_row>(row).group("tenant-42").await?;
    assert!(scheduled.is_stored());
    assert_eq!(kit.advance(1.seconds()).await[0].outcome(), "done");
    Ok(())
}

async fn charge(_order: u64) -> HandlerResult {
    Ok(Outcome::Done)
}

#[delay_handler("CHARGE_NOW", priority = "high", reserve = 2)]
async fn charge_now(order: u64) -> HandlerResult {
    charge(order).await
}

#[delay_handler("CHARGE_LATER", priority = "low")]
async fn charge_later(order: u64) -> HandlerResult {
    charge(order).await
}

#[tokio::test]
async fn a_queue_comes_before_another() -> dq::Result<()> {
    let kit = TestKit::with(|runner| runner.only(["CHARGE_NOW", "CHARGE_LATER"])).await?;
    let _ = kit.dq().schedule::<charge_later>(1).await?;
    let _ = kit.dq().schedule::<charge_now>(2).await?;
    let ran = kit.advance(1.seconds()).await;
    let queues: Vec<_> = ran.iter().map(|run| run.queue.to_string()).collect();
    assert_eq!(queues, ["CHARGE_NOW", "CHARGE_LATER"]);
    Ok(())
}

async fn override_limits(dq: &Dq) -> dq::Result<()> {
    let queue = dq.queue_of::<send_sms>()?;
    queue.override_limits(Flow::UNLIMITED.max_running(1)).await?; // without a rate
    queue.remove_override().await?; // the declared limits count again
    Ok(())
}

#[tokio::test]
async fn a_throttled_queue_is_closed_and_declared_limits_are_shown() -> dq::Result<()> {
    let queues = ["CHARGE_CARD", "SEND_SMS"];
    let kit = TestKit::with(|runner| runner.only(queues).state(Provider).state(Bank)).await?;
    for _ in 0..2 {
        let _ = kit.dq().schedule::<send_sms>(Sms).await?;
    }
    let ran = kit.advance(1.seconds()).await;
    assert_eq!(ran.iter().map(|run| run.outcome()).collect::<Vec<_>>(), ["throttled"]);
    assert!(kit.advance(28.seconds()).await.is_empty());
    assert_eq!(kit.advance(2.seconds()).await[0].outcome(), "throttled");

    let queue = kit.dq().queue_of::<send_sms>()?;
    let flow = queue.stats().await?.flow;
    assert_eq!(flow.in_force().to_string(), "rate 10/1s");
    let cards = kit.dq().queue_of::<charge_card>()?;
    assert_eq!(cards.stats().await?.flow.in_force().to_string(), "max_running 3");
    override_limits(kit.dq()).await?;
    assert_eq!(queue.stats().await?.flow.overriding, None);
    Ok(())
}
