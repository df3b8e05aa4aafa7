//! Opens the source that the arguments name.

use std::env;

use dq_core::config::BackendConfig;

use super::client::Source;
use super::local::Local;
use super::remote::Remote;
use super::runtime::runtime;
use crate::args::TargetArgs;
use crate::failure::{Failure, Result};
use crate::{serve, stores};

/// Opens the source that the arguments name; else the server in `DQ_API`; else the configured
/// store.
pub(crate) fn open(target: &TargetArgs) -> Result<Source> {
    if let Some(api) = server(target) {
        let token = target.token.clone().or_else(|| variable("DQ_TOKEN"));
        return Ok(Source::Server(Remote::new(&api, token.as_deref())?));
    }
    existing_store(target).map(Source::Store)
}

/// Opens the server that the arguments or `DQ_API` name; else `serve`'s default address.
pub(crate) fn open_server(target: &TargetArgs) -> Result<Remote> {
    if target.config.is_some() || target.url.is_some() {
        return Err(Failure::usage(
            "this command asks a server, not a store",
            "leave out --config and --url",
        ));
    }
    Remote::new(&server(target).unwrap_or_else(|| format!("http://{}", serve::ADDRESS)), None)
}

fn server(target: &TargetArgs) -> Option<String> {
    // `stores::configured` refuses a server beside a store.
    if target.config.is_some() || target.url.is_some() {
        return None;
    }
    target.api.clone().or_else(|| variable("DQ_API"))
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Opens the store for a command without an HTTP API.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) fn open_store(target: &TargetArgs) -> Result<Local> {
    refuse_server(target)?;
    existing_store(target)
}

/// Returns the settings of the store, which may not exist.
pub(crate) fn store_settings(target: &TargetArgs) -> Result<Box<dyn BackendConfig>> {
    refuse_server(target)?;
    Ok(stores::configured(target)?.builder.into_backend_config()?)
}

fn refuse_server(target: &TargetArgs) -> Result<()> {
    match server(target) {
        None => Ok(()),
        Some(_) => Err(Failure::usage(
            "this command works on the store itself, not through a server",
            "give --config or --url in place of --api or DQ_API",
        )),
    }
}

fn existing_store(target: &TargetArgs) -> Result<Local> {
    let store = stores::configured(target)?;
    let runtime = runtime()?;
    let dq = runtime.block_on(store.open_existing())?;
    Ok(Local::new(runtime, dq))
}
