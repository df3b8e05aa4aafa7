//! Guide: messages from other systems.

use dq::prelude::*;
// Links the crate, so that its ingress types register themselves.
use dq_forward as _;

async fn work() -> dq::Result<()> {
    let dq = Dq::from_config("dq.toml").await?;
    dq.runner().run_until(dq::shutdown_signal()).await
}

#[tokio::test]
async fn the_sources_of_the_page_can_be_used() -> dq::Result<()> {
    let page = include_str!("../../docs/guide/ingress.md");
    let block = super::blocks(page, "toml").into_iter().next().expect("a configuration");
    let block = block.replace("${", "").replace('}', "");
    let text = format!("[backend]\ntype = \"memory\"\n{block}");
    let dq = Dq::builder().config(dq::config::Config::from_toml(&text)?).connect().await?;
    assert_eq!(dq::Ingress::new(&dq)?.len(), 3);
    Ok(())
}
