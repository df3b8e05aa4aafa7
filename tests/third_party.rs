//! A backend from a crate unknown to `dq`, selected by name and by URL like the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dq::backend::{
    Backend, BackendConfig, ConnectUrl, Environment, MemoryBackend, Secret, async_trait,
    register_backend,
};
use dq::config::Config;
use dq::prelude::*;
use serde::Deserialize;

static CONNECTED: AtomicUsize = AtomicUsize::new(0);

/// Settings for a cloud store; the test opens a memory store instead.
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
        CONNECTED.fetch_add(1, Ordering::Relaxed);
        let (clock, history) = (environment.clock.clone(), environment.history.clone());
        Ok(Arc::new(MemoryBackend::with_history(clock, history)))
    }
}

fn from_url(url: &ConnectUrl) -> dq::Result<Box<dyn BackendConfig>> {
    let region = url.address().to_owned();
    let token = url.options().iter().find(|(name, _)| name == "token");
    let token = Secret::new(token.map_or("", |(_, value)| value));
    Ok(Box::new(CloudConfig { region, token }))
}

register_backend! {
    name: "cloud",
    settings: CloudConfig,
    schemes: ["cloud"],
    from_url: from_url,
}

/// The settings of an application with a store among them.
#[derive(Deserialize)]
struct Application {
    jobs: Box<dyn BackendConfig>,
}

#[tokio::test]
async fn a_third_party_backend_is_selected_like_the_others() {
    let cloud = "type = \"cloud\"\nregion = \"eu\"\ntoken = \"hunter2\"";
    let config = Config::from_toml(&format!("[backend]\n{cloud}\n[[drain]]\n{cloud}")).unwrap();
    assert!(!format!("{config:?}").contains("hunter2"), "`Debug` does not show secrets");
    let dq = Dq::builder().config(config).connect().await.unwrap();
    assert!(dq.stats().await.unwrap().is_empty());
    assert_eq!(CONNECTED.load(Ordering::Relaxed), 2, "the store and the drain");
    Dq::connect("cloud://eu?token=hunter2").await.unwrap();

    let json = r#"{"jobs": {"type": "cloud", "region": "eu", "token": "hunter2"}}"#;
    let application: Application = serde_json::from_str(json).unwrap();
    let store = application.jobs.connect(&Environment::default()).await.unwrap();
    Dq::builder().backend(store).connect().await.unwrap();
}
