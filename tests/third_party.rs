//! A backend of another crate: how it is registered, and how applications choose it.

use std::sync::Arc;

use dq::config::{BackendConfig, Config, ConnectUrl, Environment, Secret};
use dq::prelude::*;
use dq::{Backend, MemoryBackend, async_trait};
use serde::Deserialize;

/// The settings of the backend, as in `[backend] type = "cloud"`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CloudConfig {
    region: String,
    token: Secret,
}

#[typetag::deserialize(name = "cloud")]
#[async_trait]
impl BackendConfig for CloudConfig {
    async fn connect(&self, environment: &Environment) -> dq::Result<Arc<dyn Backend>> {
        assert_eq!((self.region.as_str(), self.token.expose()), ("eu", "hunter2"));
        Ok(Arc::new(MemoryBackend::new(environment.clock.clone())))
    }
}

fn from_url(url: &ConnectUrl) -> dq::Result<Box<dyn BackendConfig>> {
    let region = url.address().to_owned();
    let token = url.options().iter().find(|(name, _)| name == "token");
    let token = Secret::new(token.map_or("", |(_, value)| value));
    Ok(Box::new(CloudConfig { region, token }))
}

dq::register_backend! {
    name: "cloud",
    schemes: ["cloud"],
    from_url: from_url,
}

#[tokio::test]
async fn the_backend_is_chosen_by_type_by_url_and_as_a_drain() {
    let cloud = "type = \"cloud\"\nregion = \"eu\"\ntoken = \"hunter2\"";
    let config = Config::from_toml(&format!("[backend]\n{cloud}\n[[drain]]\n{cloud}")).unwrap();
    assert!(!format!("{config:?}").contains("hunter2"), "`Debug` does not show secrets");
    let dq = Dq::builder().config(config).connect().await.unwrap();
    assert!(dq.stats().await.unwrap().is_empty());
    Dq::connect("cloud://eu?token=hunter2").await.unwrap();
}

#[test]
fn errors_name_wrong_settings_and_known_backends() {
    let error = Config::from_toml("[backend]\ntype = \"cloud\"\nregoin = \"eu\"").unwrap_err();
    assert!(error.to_string().contains("regoin"), "{error}");
    let error = Config::from_toml("[backend]\ntype = \"clowd\"").unwrap_err();
    assert!(error.to_string().contains("`cloud`"), "{error}");
}
