//! The runtime behind commands, which wait for each call.

use tokio::runtime::{Builder, Runtime};

use crate::failure::{Failure, Result};

pub(crate) fn runtime() -> Result<Runtime> {
    Builder::new_multi_thread().enable_all().build().map_err(|error| {
        Failure::new("internal", format!("the runtime does not start: {error}"), "")
    })
}
