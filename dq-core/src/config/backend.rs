//! How a backend is chosen by name, in a file or by URL, from crates that this one does not know.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use super::url::ConnectUrl;
use crate::backend::Backend;
use crate::clock::{Clock, SystemClock};
use crate::entropy::Entropy;
use crate::error::{Error, ErrorKind, Result};

/// The settings of one kind of backend, as they stand under `[backend]` beside its `type`.
///
/// Implement it for a struct with `#[serde(deny_unknown_fields)]`, mark the `impl` with
/// `#[typetag::deserialize(name = "…")]` and `#[async_trait]`, and register it with
/// [`register_backend!`](crate::register_backend). `Debug` must not show passwords:
/// [`Secret`](super::Secret) does not.
#[typetag::deserialize(tag = "type")]
#[async_trait]
pub trait BackendConfig: fmt::Debug + Send + Sync {
    /// Opens the store.
    ///
    /// # Errors
    /// What is wrong with the settings or the store, with the remedy.
    async fn connect(&self, environment: &Environment) -> Result<Arc<dyn Backend>>;
}

/// What a backend gets from the process it lives in.
#[derive(Debug, Clone)]
pub struct Environment {
    /// The process's clock; a store with a clock of its own goes by that.
    pub clock: Arc<dyn Clock>,
    /// For jitter and names.
    pub entropy: Arc<Entropy>,
}

impl Environment {
    /// A clock and a source of randomness.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, entropy: Arc<Entropy>) -> Self {
        Self { clock, entropy }
    }
}

impl Default for Environment {
    /// The machine's clock, and randomness from the operating system.
    fn default() -> Self {
        Self::new(Arc::new(SystemClock), Arc::new(Entropy::from_os()))
    }
}

/// Makes a backend known by its type and URL schemes.
#[derive(Debug)]
pub struct BackendRegistration {
    /// The word after `type =`.
    pub name: &'static str,
    /// The schemes of its URLs.
    pub schemes: &'static [&'static str],
    /// Settings from a URL.
    pub from_url: fn(&ConnectUrl) -> Result<Box<dyn BackendConfig>>,
    /// Where it was registered, as `file:line`.
    pub location: &'static str,
}

inventory::collect!(BackendRegistration);

/// Registers a backend: the name it has for typetag, its URL schemes, and a function from
/// [`ConnectUrl`] to its boxed settings.
#[macro_export]
macro_rules! register_backend {
    (name: $name:literal, schemes: [$($scheme:literal),* $(,)?], from_url: $from_url:expr $(,)?) => {
        $crate::__private::inventory::submit! {
            $crate::config::BackendRegistration {
                name: $name,
                schemes: &[$($scheme),*],
                from_url: $from_url,
                location: ::core::concat!(::core::file!(), ":", ::core::line!()),
            }
        }
    };
}

/// Every linked backend by name.
///
/// # Errors
/// `Duplicate` naming both places, if two share a name.
pub fn known_backends() -> Result<BTreeMap<&'static str, &'static BackendRegistration>> {
    let mut known = BTreeMap::new();
    for registration in inventory::iter::<BackendRegistration> {
        if let Some(other) = known.insert(registration.name, registration) {
            return Err(Error::new(
                ErrorKind::Duplicate,
                format!(
                    "two backends are called {:?}: {} and {}",
                    registration.name, other.location, registration.location
                ),
            )
            .remedy("rename one of them, or link only one"));
        }
    }
    Ok(known)
}

/// The settings that a URL describes.
///
/// # Errors
/// `Config` if no linked backend has the scheme, or the backend refuses the URL.
pub fn backend_from_url(url: &str) -> Result<Box<dyn BackendConfig>> {
    let url = ConnectUrl::parse(url)?;
    let known = known_backends()?;
    let found = known.values().find(|backend| backend.schemes.contains(&url.scheme()));
    match found {
        Some(backend) => (backend.from_url)(&url),
        None => {
            let schemes: Vec<_> =
                known.values().flat_map(|backend| backend.schemes.iter().copied()).collect();
            Err(Error::new(
                ErrorKind::Config,
                format!(
                    "no backend has the URL scheme {:?}; known: {}",
                    url.scheme(),
                    schemes.join(", ")
                ),
            )
            .remedy("is the backend's crate linked? a crate that is never named in code registers nothing: `use its_crate as _;`"))
        }
    }
}
