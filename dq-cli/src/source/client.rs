//! The HTTP API of a server, or of an open store.

use serde::de::DeserializeOwned;

use super::local::Local;
use super::remote::Remote;
use super::request::Request;
use crate::failure::Result;

pub(crate) enum Source {
    Store(Local),
    Server(Remote),
}

impl Source {
    pub(super) fn send<T: DeserializeOwned>(&self, request: Request<'_>) -> Result<T> {
        match self {
            Self::Store(local) => local.send(&request),
            Self::Server(remote) => remote.send(&request),
        }
    }

    pub(crate) fn close(&self) -> dq_core::Result<()> {
        match self {
            Self::Store(local) => local.close(),
            Self::Server(_) => Ok(()),
        }
    }
}
