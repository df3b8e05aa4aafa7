//! Marks errors from before a connection is open, TLS included: the server has seen no request.

use std::fmt;

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    ConnectionDetails, Connector, DefaultConnector, NextTimeout, Transport,
};
use ureq::{Agent, Error};

/// Returns a client with errors marked for [`not_connected`].
pub(super) fn agent(config: Config) -> Agent {
    Agent::with_parts(
        config,
        Marking::<DefaultConnector>::default(),
        Marking::<DefaultResolver>::default(),
    )
}

/// Returns the connection error; `None` if the request may have been sent.
pub(super) fn not_connected(error: &Error) -> Option<&Error> {
    match error {
        Error::Other(other) => other.downcast_ref().map(|NotConnected(error)| error),
        _ => None,
    }
}

#[derive(Debug)]
struct NotConnected(Error);

impl fmt::Display for NotConnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for NotConnected {}

fn mark<T>(result: Result<T, Error>) -> Result<T, Error> {
    result.map_err(|error| Error::Other(Box::new(NotConnected(error))))
}

#[derive(Debug, Default)]
struct Marking<T>(T);

impl Connector<()> for Marking<DefaultConnector> {
    type Out = Box<dyn Transport>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<()>,
    ) -> Result<Option<Self::Out>, Error> {
        mark(self.0.connect(details, chained))
    }
}

impl Resolver for Marking<DefaultResolver> {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        mark(self.0.resolve(uri, config, timeout))
    }
}
