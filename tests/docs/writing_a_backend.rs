//! Guide: writing a backend.

use std::sync::Arc;

use dq::backend::{Backend, BackendConfig, ConnectUrl};
use dq::config::Environment;
use dq_testkit::behaviour::{self, UrlBackend};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MyStore {}

#[typetag::deserialize(name = "mystore")]
#[dq::async_trait]
impl BackendConfig for MyStore {
    async fn connect(&self, environment: &Environment) -> dq::Result<Arc<dyn Backend>> {
        // Stands in for a real store. Each connection has its own jobs; the suite allows that
        // because this backend is neither durable nor shared.
        let (clock, history) = (environment.clock.clone(), environment.history.clone());
        Ok(Arc::new(dq::MemoryBackend::with_history(clock, history)))
    }
}

fn from_url(_url: &ConnectUrl) -> dq::Result<Box<dyn BackendConfig>> {
    Ok(Box::new(MyStore {}))
}

dq::backend::register_backend! {
    name: "mystore",
    settings: MyStore,
    schemes: ["mystore"],
    from_url: from_url,
}

fn main() -> std::process::ExitCode {
    behaviour::main(vec![("mystore", Box::new(UrlBackend::with_real_clock(|| "mystore:".into())))])
}

#[tokio::test]
async fn the_backend_is_selected_by_its_name_and_by_its_scheme() -> dq::Result<()> {
    let table = "type = \"mystore\"";
    let file = format!("[backend]\n{table}\n[[drain]]\n{table}");
    dq::Dq::builder().config(dq::config::Config::from_toml(&file)?).connect().await?;
    dq::Dq::connect("mystore:").await?;
    Ok(())
}

#[test]
fn the_remedy_for_what_a_store_cannot_do_names_a_page() {
    let (title, _) = include_str!("../../docs/guide/backends.md").split_once('\n').unwrap();
    let title = format!("{:?}", title.trim_start_matches("# "));
    let refused = dq::Error::unsupported("mystore", "schedules");
    assert!(refused.remedy_text().is_some_and(|remedy| remedy.contains(&title)), "{refused}");
}
