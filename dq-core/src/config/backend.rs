//! Backends by name and by URL: settings and registration, for crates that this one does not know.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use super::url::ConnectUrl;
use crate::backend::Backend;
use crate::clock::{Clock, SystemClock};
use crate::entropy::Entropy;
use crate::error::{Error, ErrorKind, Result};
use crate::model::HistoryLimits;

/// The settings of one type of backend: the keys beside `type` in `[backend]`.
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
    /// `Config` if a setting cannot be used, `Unavailable` if the store cannot be reached,
    /// `Incompatible` if it holds data of an unknown version.
    async fn connect(&self, environment: &Environment) -> Result<Arc<dyn Backend>>;

    /// Opens a store that exists already, such as one that is drained.
    ///
    /// A backend whose `connect` would create a missing store overrides this, so that a misspelt
    /// setting is refused. By default it is the same as `connect`.
    ///
    /// # Errors
    /// `Config` if the store does not exist; otherwise as of [`Self::connect`].
    async fn connect_existing(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        self.connect(environment).await
    }
}

/// The clock, the randomness and the history limits that a process gives to its backends.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Environment {
    /// The process's clock. A store with a clock of its own uses its own.
    pub clock: Arc<dyn Clock>,
    /// Randomness for jitter and generated names.
    pub entropy: Arc<Entropy>,
    /// How many ended jobs the backend is to remember.
    pub history: HistoryLimits,
}

impl Environment {
    /// An environment of a clock and a source of randomness, with the default history limits.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, entropy: Arc<Entropy>) -> Self {
        Self { clock, entropy, history: HistoryLimits::default() }
    }

    /// Sets [`Self::history`].
    #[must_use]
    pub fn history(mut self, history: HistoryLimits) -> Self {
        self.history = history;
        self
    }
}

impl Default for Environment {
    /// The machine's clock, and randomness from the operating system.
    fn default() -> Self {
        Self::new(Arc::new(SystemClock), Arc::new(Entropy::from_os()))
    }
}

/// The type and the URL schemes of a backend; created by
/// [`register_backend!`](crate::register_backend).
#[derive(Debug)]
pub struct BackendRegistration {
    /// The value of `type` in the configuration.
    pub name: &'static str,
    /// The schemes of its URLs.
    pub schemes: &'static [&'static str],
    /// Converts a URL to settings.
    pub from_url: fn(&ConnectUrl) -> Result<Box<dyn BackendConfig>>,
    /// Source location of the registration, as `file:line`.
    pub location: &'static str,
}

inventory::collect!(BackendRegistration);

/// Registers a backend: its name, which must be the one given to `#[typetag::deserialize]`, its URL
/// schemes, and a function from [`ConnectUrl`] to its boxed settings.
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

/// All linked backends by name; a backend is linked if its crate is named in code.
///
/// # Errors
/// `Duplicate` naming both source locations, if two backends share a name.
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
    if let Some(backend) = known.values().find(|backend| backend.schemes.contains(&url.scheme())) {
        return (backend.from_url)(&url);
    }
    let schemes: Vec<_> =
        known.values().flat_map(|backend| backend.schemes.iter().copied()).collect();
    let what =
        format!("no backend has the URL scheme {:?}; known: {}", url.scheme(), schemes.join(", "));
    Err(Error::new(ErrorKind::Config, what).remedy(missing_backend_remedy(url.scheme())))
}

/// The remedy for an unknown backend type or URL scheme: the cargo feature to enable if that would
/// add the backend, otherwise a hint to take a known one or to link a crate.
pub(super) fn missing_backend_remedy(name: &str) -> Cow<'static, str> {
    // Each feature has the name of its first backend.
    let is_linked =
        |feature: &&str| known_backends().is_ok_and(|known| known.contains_key(feature));
    match cargo_feature(name).filter(|feature| !is_linked(feature)) {
        Some(feature) => format!(
            "enable the feature in Cargo.toml: dq = {{ package = \"dq-jobs\", \
             features = [\"{feature}\"] }}"
        )
        .into(),
        None => {
            "take one of these; in a program of your own, is the backend's crate linked? (`use \
                 its_crate as _;`)"
                .into()
        }
    }
}

/// The feature of `dq` that contains the backend with this type or URL scheme.
fn cargo_feature(name: &str) -> Option<&'static str> {
    // Variants of a scheme, such as `redis+sentinel`, belong to the same backend.
    match name.split('+').next()? {
        "sqlite" => Some("sqlite"),
        "redis" | "rediss" | "redisson" | "redis-expiry" => Some("redis"),
        "rabbitmq" | "rabbitmqs" | "amqp" | "amqps" => Some("rabbitmq"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_of_a_disabled_feature_is_refused_with_the_feature() {
        // This crate alone has only `memory`.
        for (url, feature) in [
            ("sqlite://jobs.db", "sqlite"),
            ("redis://user:hunter2@host/0", "redis"),
            ("rediss+cluster://h1,h2", "redis"),
            ("redisson+unix:///tmp/redis.sock", "redis"),
            ("redis-expiry://host", "redis"),
            ("amqp://user:hunter2@host/vhost", "rabbitmq"),
            ("amqps://host", "rabbitmq"),
        ] {
            let error = backend_from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            let text = error.to_string();
            assert!(text.contains(&format!("features = [\"{feature}\"]")), "{url}: {text}");
            assert!(!text.contains("hunter2") && !text.contains("linked"), "{url}: {text}");
        }
    }

    #[test]
    fn an_unknown_scheme_is_refused_with_a_hint_about_linking() {
        let error = backend_from_url("mongodb://host").unwrap_err().to_string();
        assert!(error.contains("\"mongodb\"") && error.contains("known: memory"), "{error}");
        assert!(error.contains("use its_crate as _;"), "{error}");
    }
}
