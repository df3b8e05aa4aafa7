//! Settings with a `type` that another crate understands: stores, forwards and ingresses.

use std::collections::BTreeMap;
use std::fmt;

use figment::error::Kind;
use figment::value::{Dict, Value};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, de};

use super::problem::{self, quoted};
use crate::error::{Error, ErrorKind, Result};

/// Settings with a `type`, such as `[backend]`, `[queues.NAME.forward]` and `[[ingress]]`.
///
/// Only the type's crate understands the other keys. `Debug` hides their values.
#[derive(Clone, PartialEq)]
pub struct TypedSettings {
    kind: String,
    fields: Value,
}

/// The error of a type that refuses its settings. `Debug` hides it, because it may repeat values.
pub struct RefusedSettings(pub(super) Box<figment::Error>);

impl fmt::Debug for RefusedSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RefusedSettings")
    }
}

impl TypedSettings {
    pub(super) const TYPE: &'static str = "type";

    /// Returns the value of `type`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.fields.find_ref(key)?.as_str()
    }

    pub(super) fn fields(&self) -> &Value {
        &self.fields
    }

    /// Deserializes the keys beside `type`. Use a type with `#[serde(deny_unknown_fields)]`.
    ///
    /// # Errors
    /// `Config` with the key and the expected kind of value, without values.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T> {
        self.read().map_err(|RefusedSettings(error)| {
            let what = match &error.kind {
                Kind::UnknownField(key, known) => {
                    format!("unknown field `{key}`; known: {}", quoted(known))
                }
                Kind::MissingField(key) => format!("missing field `{key}`"),
                _ => {
                    let (path, problem) = problem::locate(*error, Some(&self.fields));
                    format!("`{}`: {}", path.join("."), problem.what)
                }
            };
            Error::new(ErrorKind::Config, what).remedy("correct it in the configuration")
        })
    }

    #[doc(hidden)]
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, RefusedSettings> {
        self.fields.deserialize().map_err(|error| RefusedSettings(Box::new(error)))
    }
}

/// Returns the types that all linked crates register, by name.
///
/// `category` is a word for messages, such as `forward`. `name_of` returns a registration's name
/// and source location.
pub(super) fn registered<R>(
    category: &str,
    all: impl IntoIterator<Item = &'static R>,
    name_of: impl Fn(&R) -> (&'static str, &'static str),
) -> Result<BTreeMap<&'static str, &'static R>> {
    let mut known = BTreeMap::new();
    for registration in all {
        let (name, location) = name_of(registration);
        if let Some(other) = known.insert(name, registration) {
            let (_, other) = name_of(other);
            let message = format!(
                "the {category} {name:?} is registered twice: at {other} and at {location}"
            );
            return Err(Error::new(ErrorKind::Duplicate, message)
                .remedy("rename one of them, or link only one of the two crates"));
        }
    }
    Ok(known)
}

/// Finds one of the [`registered`] types.
pub(crate) fn registration<R>(
    category: &str,
    kind: &str,
    all: impl IntoIterator<Item = &'static R>,
    name_of: impl Fn(&R) -> (&'static str, &'static str),
) -> Result<&'static R> {
    let known = registered(category, all, name_of)?;
    known.get(kind).copied().ok_or_else(|| {
        let names: Vec<_> = known.into_keys().collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Error::new(ErrorKind::Config, format!("no {category} is called {kind:?}; known: {names}"))
            .remedy(
                "take one of these; in a program of your own, is the crate linked? (dq-forward in \
                 Cargo.toml, and `use dq_forward as _;`)",
            )
    })
}

impl fmt::Debug for TypedSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.fields.as_dict().into_iter().flat_map(Dict::keys).collect();
        f.debug_struct("TypedSettings").field("type", &self.kind).field("keys", &keys).finish()
    }
}

impl<'de> Deserialize<'de> for TypedSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut fields = Dict::deserialize(deserializer)?;
        match fields.remove(Self::TYPE) {
            Some(Value::String(_, kind)) => Ok(Self { kind, fields: fields.into() }),
            Some(_) => Err(de::Error::custom("`type` must be the name of a type, in quotes")),
            None => Err(de::Error::missing_field(Self::TYPE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Secret};
    use crate::model::QueueName;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Target {
        url: Secret,
        #[serde(default)]
        tries: u32,
    }

    fn settings(keys: &str) -> TypedSettings {
        let text = format!("[backend]\ntype = \"memory\"\n[queues.A.forward]\n{keys}");
        let config = Config::from_toml(&text).unwrap();
        config.queues[&QueueName::new("A").unwrap()].forward.clone().unwrap()
    }

    #[test]
    fn errors_name_the_key_and_no_value() {
        for (keys, expected) in [
            ("urk = \"hunter2\"", "unknown field `urk`; known: `url`, `tries`"),
            ("tries = 1", "missing field `url`"),
            ("url = \"x\"\ntries = \"hunter2\"", "`tries`: found text, expected a whole number"),
            ("url = [\"hunter2\"]", "`url`: found a list, expected text"),
        ] {
            let settings = settings(&format!("type = \"x\"\n{keys}"));
            assert!(!format!("{settings:?}").contains("hunter2"), "{settings:?}");
            let error = settings.deserialize::<Target>().unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    }
}
