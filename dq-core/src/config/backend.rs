//! Backend settings and registration, by name and URL, for other crates.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use figment::error::Kind;
use serde::Serialize;

use super::problem::{self, Problem, quoted};
use super::typed::{RefusedSettings, TypedSettings, registered};
use super::url::ConnectUrl;
use crate::backend::Backend;
use crate::clock::{Clock, SystemClock};
use crate::entropy::Entropy;
use crate::error::{Error, ErrorKind, Result};
use crate::model::HistoryLimits;

/// Settings for one backend type: the keys beside `type` in `[backend]`.
///
/// Implement it for a `Deserialize` struct with `#[serde(deny_unknown_fields)]`, and register that
/// with [`register_backend!`](crate::register_backend). `Debug` must hide passwords, as
/// [`Secret`](super::Secret) does.
///
/// Mark the `impl` with `#[typetag::deserialize(name = "…")]` and the same name, so that
/// applications can have a `Box<dyn BackendConfig>` among their settings.
#[typetag::deserialize(tag = "type")]
#[async_trait]
pub trait BackendConfig: fmt::Debug + Send + Sync {
    /// Opens the store.
    ///
    /// # Errors
    /// `Config` for a setting that cannot be used, `Unavailable` if the store cannot be reached,
    /// `Incompatible` if its data has an unknown version.
    async fn connect(&self, environment: &Environment) -> Result<Arc<dyn Backend>>;

    /// Opens an existing store, such as one being drained.
    ///
    /// Override it if your `connect` creates missing stores, so that a misspelt setting is an
    /// error.
    ///
    /// # Errors
    /// `Config` if the store does not exist; otherwise as [`Self::connect`].
    async fn connect_existing(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        self.connect(environment).await
    }

    /// Returns the SQL to create or update the store, and to grant `role` the rights to use it.
    ///
    /// For people who run migrations with their own tools. Printing needs no connection, and
    /// running the SQL again changes nothing.
    ///
    /// # Errors
    /// `Unsupported` if the store is not kept in such a schema; `Config` for an invalid setting.
    fn schema_sql(&self, _role: Option<&str>) -> Result<String> {
        Err(without_schema())
    }

    /// Runs [`schema_sql`](Self::schema_sql), which [`connect`](Self::connect) also does, without
    /// `role`, if necessary.
    ///
    /// # Errors
    /// As [`schema_sql`](Self::schema_sql) and [`connect`](Self::connect).
    async fn migrate(&self, _role: Option<&str>) -> Result<Migrated> {
        Err(without_schema())
    }
}

fn without_schema() -> Error {
    Error::new(ErrorKind::Unsupported, "this store has no SQL schema to create or migrate")
        .remedy("nothing to do: `dq serve`, or a program that connects, prepares this store")
}

/// What [`BackendConfig::migrate`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Migrated {
    /// It has created the schema.
    Created,
    /// It has brought the schema up to date.
    Updated,
    /// The schema was up to date, or a newer version has created it.
    Unchanged,
}

/// Clock, randomness and history limits that a process gives to its backends.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Environment {
    /// The process's clock. A store with its own clock ignores it.
    pub clock: Arc<dyn Clock>,
    /// Randomness for jitter and generated names.
    pub entropy: Arc<Entropy>,
    /// How many ended jobs the backend remembers.
    pub history: HistoryLimits,
}

impl Environment {
    /// Creates an environment with the default history limits.
    pub fn new(clock: Arc<dyn Clock>, entropy: Arc<Entropy>) -> Self {
        Self { clock, entropy, history: HistoryLimits::default() }
    }

    setters!(history: HistoryLimits);
}

impl Default for Environment {
    /// Uses the machine's clock and the operating system's randomness.
    fn default() -> Self {
        Self::new(Arc::new(SystemClock), Arc::new(Entropy::from_os()))
    }
}

/// A backend's type and URL schemes, from [`register_backend!`](crate::register_backend).
#[derive(Debug)]
pub struct BackendRegistration {
    /// The value of `type` in the configuration.
    pub name: &'static str,
    /// Its URL schemes.
    pub schemes: &'static [&'static str],
    /// Reads the settings beside `type`.
    pub from_settings: fn(&TypedSettings) -> Result<Box<dyn BackendConfig>, RefusedSettings>,
    /// Converts a URL to settings.
    pub from_url: fn(&ConnectUrl) -> Result<Box<dyn BackendConfig>>,
    /// Source location, as `file:line`.
    pub location: &'static str,
}

inventory::collect!(BackendRegistration);

/// Registers a backend: its name (the value of `type`), settings type and URL schemes, and a
/// function from [`ConnectUrl`] to boxed settings.
#[macro_export]
macro_rules! register_backend {
    (
        name: $name:literal,
        settings: $settings:ty,
        schemes: [$($scheme:literal),* $(,)?],
        from_url: $from_url:expr $(,)?
    ) => {
        $crate::__private::inventory::submit! {
            $crate::config::BackendRegistration {
                name: $name,
                schemes: &[$($scheme),*],
                from_settings: |settings| {
                    settings.read::<$settings>().map(|settings| ::std::boxed::Box::new(settings) as _)
                },
                from_url: $from_url,
                location: ::core::concat!(::core::file!(), ":", ::core::line!()),
            }
        }
    };
}

/// Returns all linked backends by name. Name a backend's crate in your code to link it.
///
/// # Errors
/// `Duplicate` with both source locations, if two backends share a name.
pub fn known_backends() -> Result<BTreeMap<&'static str, &'static BackendRegistration>> {
    registered("backend", inventory::iter::<BackendRegistration>, |it| (it.name, it.location))
}

/// Lists the linked backends for a message. `Config` has already reported duplicate names.
fn known_names() -> String {
    quoted(&known_backends().unwrap_or_default().into_keys().collect::<Vec<_>>())
}

/// Describes a store without a `type`.
pub(super) fn missing_type() -> Problem {
    Problem::new(format!("`type` is missing; known: {}", known_names())).remedy(
        "give the type and its settings, such as `type = \"sqlite\"` and `path = \"jobs.db\"`, or \
         a URL instead (`--url`; in code, `Dq::connect`)",
    )
}

/// Reads `[backend]`, the main store, or an entry of `[[drain]]`.
pub(super) fn backend_from_settings(
    settings: &TypedSettings,
    is_main: bool,
) -> Result<Box<dyn BackendConfig>, (Vec<String>, Problem)> {
    let name = settings.kind();
    let known = known_backends().unwrap_or_default();
    let Some(backend) = known.get(name) else {
        let what = format!("no backend is called {name:?}; known: {}", known_names());
        let problem = Problem::new(what).remedy(missing_backend_remedy(name));
        return Err((vec![TypedSettings::TYPE.to_owned()], problem));
    };
    (backend.from_settings)(settings).map_err(|RefusedSettings(error)| {
        let missing = match &error.kind {
            Kind::MissingField(key) if is_main => {
                let variable = key.to_uppercase();
                format!("add `{key} = …` beside `type`, or set the variable DQ_BACKEND__{variable}")
            }
            Kind::MissingField(key) => format!("add `{key} = …` beside `type`"),
            _ => String::new(),
        };
        let (path, problem) = problem::locate(*error, Some(settings.fields()));
        (path, problem.remedy(missing))
    })
}

/// Converts a URL to backend settings.
///
/// # Errors
/// `Config` if no linked backend has the scheme, or the backend rejects the URL.
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

/// Tells how to link the backend with this type or URL scheme: by a cargo feature of `dq`, or by
/// its crate.
fn missing_backend_remedy(name: &str) -> String {
    // Variants such as `redis+sentinel` use the same backend.
    let feature = match name.split('+').next() {
        Some("sqlite") => "sqlite",
        Some("postgres" | "postgresql") => "postgres",
        Some("redis" | "rediss" | "redisson" | "redis-expiry") => "redis",
        Some("rabbitmq" | "rabbitmqs" | "amqp" | "amqps") => "rabbitmq",
        _ => "",
    };
    // Each feature has the name of its first backend.
    let is_linked = known_backends().is_ok_and(|known| known.contains_key(feature));
    if feature.is_empty() || is_linked {
        return "take one of these; in a program of your own, is the backend's crate linked? (`use \
                its_crate as _;`)"
            .to_owned();
    }
    format!(
        "enable the feature in Cargo.toml: dq = {{ package = \"dq-jobs\", \
         features = [\"{feature}\"] }}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_of_a_disabled_feature_is_refused_with_the_feature() {
        // This crate alone has only `memory`.
        for (url, feature) in [
            ("sqlite://jobs.db", "sqlite"),
            ("postgresql://user:hunter2@host/db", "postgres"),
            ("redis-expiry://user:hunter2@host/0", "redis"),
            ("rediss+cluster://h1,h2", "redis"),
            ("redisson+unix:///tmp/redis.sock", "redis"),
            ("amqps://user:hunter2@host/vhost", "rabbitmq"),
        ] {
            let text = backend_from_url(url).unwrap_err().to_string();
            assert!(text.contains(&format!("features = [\"{feature}\"]")), "{url}: {text}");
            assert!(!text.contains("hunter2") && !text.contains("linked"), "{url}: {text}");
        }
    }
}
