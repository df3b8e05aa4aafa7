//! Code of `docs/guide/forwarding.md`, and a test of its TOML.

use dq::prelude::*;
// Links the crate, so that its forward types register themselves.
use dq_forward as _;

#[tokio::main]
async fn main() -> dq::Result<()> {
    let dq = Dq::from_config("dq.toml").await?;
    dq.runner().run_until(dq::shutdown_signal()).await
}

async fn order_placed(dq: &Dq, order: u64) -> dq::Result<()> {
    let payload = format!("{{\"order\":{order}}}");
    let job = dq.queue("BILLING")?.schedule(payload.into_bytes(), "application/json");
    let scheduled = job.after(15.minutes()).key(order).await?;
    println!("the webhook will have the id {}", scheduled.id());
    Ok(())
}

struct Print;

#[dq::async_trait]
impl dq::RawHandler for Print {
    async fn handle(&self, job: JobContext) -> dq::HandlerResult {
        println!("{} {:?}", job.id(), job.raw_payload());
        Ok(dq::Outcome::Done)
    }
}

fn runner(dq: &Dq) -> dq::Result<dq::RunnerBuilder> {
    let billing = dq_forward::HttpSettings::new("https://billing.example.com/due");
    let billing = dq_forward::HttpForward::new(billing)?;
    Ok(dq.runner().raw_handler("BILLING", billing).raw_handler("DEBUG", Print))
}

/// Replaces each `${NAME}` by a value.
fn with_variables(block: &str) -> String {
    // A webhook secret must be valid Base64.
    let block =
        block.replace("${BILLING_WEBHOOK_SECRET}", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let mut parts = block.split("${");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (_name, rest) = part.split_once('}').expect("a variable ends");
        text += "value";
        text += rest;
    }
    text
}

#[tokio::test]
async fn the_forwards_of_the_page_can_be_used() -> dq::Result<()> {
    // One for each type, and one each for `dead_on` and `allow`.
    const FORWARDS: usize = 4 + 2;
    let page = include_str!("../../docs/guide/forwarding.md");
    let mut forwards = 0;
    // The test for all pages already covers whole files.
    let is_part = |block: &&str| block.contains("forward]") && !block.contains("[backend]");
    for block in super::blocks(page, "toml").into_iter().filter(is_part) {
        let text = format!("[backend]\ntype = \"memory\"\n{}", with_variables(block));
        let config = dq::config::Config::from_toml(&text)?;
        forwards += config.queues.len();
        let dq = Dq::builder().config(config).connect().await?;
        dq.runner().without_linked_handlers().build()?;
        order_placed(&dq, 1).await?;
    }
    assert_eq!(forwards, FORWARDS);
    let dq = Dq::connect("memory:").await?;
    runner(&dq)?.without_linked_handlers().build()?;
    Ok(())
}
