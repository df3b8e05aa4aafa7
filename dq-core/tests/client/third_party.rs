//! A store of another crate.

use std::sync::Arc;

use dq_core::config::{BackendConfig, Config, Environment};
use dq_core::{Backend, Dq, Error, ErrorKind, Result, async_trait, register_backend};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OtherStore {
    address: String,
    pool: String,
}

#[typetag::deserialize(name = "other")]
#[async_trait]
impl BackendConfig for OtherStore {
    async fn connect(&self, _: &Environment) -> Result<Arc<dyn Backend>> {
        let Self { address, pool } = self;
        Err(Error::new(ErrorKind::Unavailable, format!("{address} and {pool} are received")))
    }
}

register_backend! {
    name: "other",
    settings: OtherStore,
    schemes: ["otherstore", "otherstores"],
    from_url: |url| {
        let fields = serde_json::json!({"address": url.address(), "pool": url.options()[0].1});
        Ok(Box::new(url.deserialize::<OtherStore>(fields)?))
    },
}

#[tokio::test]
async fn a_registered_store_is_chosen_by_name_or_url_and_receives_address_and_options() {
    let file = "[backend]\ntype = \"other\"\naddress = \"host:1/2\"\npool = \"3\"";
    for builder in [
        Dq::builder().config(Config::from_toml(file).unwrap()),
        Dq::builder().url("otherstores://host:1/2?pool=3"),
    ] {
        let error = builder.connect().await.unwrap_err();
        assert_eq!(error.message(), "host:1/2 and 3 are received");
    }
}
