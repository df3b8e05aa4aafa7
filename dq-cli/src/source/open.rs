//! Opens what the arguments name: a store or a server.

use std::env;

use tokio::runtime::{Builder, Runtime};

use super::Source;
use super::http::Api;
use super::store::StoreSource;
use crate::args::TargetArgs;
use crate::failure::{Failure, Result};
use crate::stores;

/// Opens what the arguments name; if they name nothing, the server of `DQ_API`, and without that the
/// store of the configuration.
pub(crate) fn open(target: &TargetArgs) -> Result<Box<dyn Source>> {
    if let Some(api) = server(target) {
        let token = target.token.clone().or_else(|| variable("DQ_TOKEN"));
        return Ok(Box::new(Api::new(&api, token.as_deref())?));
    }
    Ok(Box::new(existing_store(target)?))
}

/// The address of the server that the arguments or the environment name.
fn server(target: &TargetArgs) -> Option<String> {
    // With a store, `stores::configured` refuses a server beside it.
    if target.config.is_some() || target.url.is_some() {
        return None;
    }
    target.api.clone().or_else(|| variable("DQ_API"))
}

/// An environment variable, unless it is empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Opens the store that the arguments name, for a command that the HTTP API does not have.
#[cfg(feature = "redis")]
pub(crate) fn open_store(target: &TargetArgs) -> Result<StoreSource> {
    if server(target).is_some() {
        return Err(Failure::usage(
            "this command works on the store itself, not through a server",
            "give --config or --url in place of --api or DQ_API",
        ));
    }
    existing_store(target)
}

fn existing_store(target: &TargetArgs) -> Result<StoreSource> {
    let store = stores::configured(target)?;
    let runtime = runtime()?;
    let dq = runtime.block_on(store.open_existing())?;
    Ok(StoreSource::new(runtime, dq))
}

/// The runtime of stores and servers.
pub(crate) fn runtime() -> Result<Runtime> {
    Builder::new_multi_thread().enable_all().build().map_err(|error| {
        Failure::new("internal", format!("the runtime does not start: {error}"), "")
    })
}
