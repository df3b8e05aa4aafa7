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
/// Only the type's crate understands the other keys. `Debug` hides their values, which may be
/// secret.
#[derive(Clone, PartialEq)]
pub struct TypedSettings {
    kind: String,
    fields: Value,
}

/// Why a type refuses its settings. `Debug` hides it, because it may repeat their values.
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

/// Returns the types that all linked crates register. `name_of` returns a name and source location;
/// `what` names the category, such as `forward`.
pub(super) fn registered<R>(
    what: &str,
    all: impl IntoIterator<Item = &'static R>,
    name_of: impl Fn(&R) -> (&'static str, &'static str),
) -> Result<BTreeMap<&'static str, &'static R>> {
    let mut known = BTreeMap::new();
    for registration in all {
        let (name, location) = name_of(registration);
        if let Some(other) = known.insert(name, registration) {
            let (_, other) = name_of(other);
            return Err(Error::new(
                ErrorKind::Duplicate,
                format!("the {what} {name:?} is registered twice: at {other} and at {location}"),
            )
            .remedy("rename one of them, or link only one of the two crates"));
        }
    }
    Ok(known)
}

/// Finds one of the [`registered`] types.
pub(crate) fn registration<R>(
    what: &str,
    kind: &str,
    all: impl IntoIterator<Item = &'static R>,
    name_of: impl Fn(&R) -> (&'static str, &'static str),
) -> Result<&'static R> {
    let known = registered(what, all, name_of)?;
    known.get(kind).copied().ok_or_else(|| {
        let names: Vec<_> = known.into_keys().collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Error::new(ErrorKind::Config, format!("no {what} is called {kind:?}; known: {names}"))
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
    fn keys_are_typed_by_the_crate_of_the_type() {
        let settings = settings("type = \"x\"\nurl = \"hunter2\"\ntries = 3");
        assert_eq!(settings.kind(), "x");
        let target: Target = settings.deserialize().unwrap();
        assert_eq!((target.url.expose(), target.tries), ("hunter2", 3));
        assert!(!format!("{settings:?}").contains("hunter2"), "{settings:?}");
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
            let error = settings.deserialize::<Target>().unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_forward_needs_a_type_and_belongs_to_one_queue() {
        for (text, expected) in [
            ("[queues.A.forward]\nurl = \"x\"", "type"),
            ("[queues.A.forward]\ntype = 1", "type"),
            ("[queues.A]\nforward = \"http://x\"", "queues.A.forward"),
            ("[defaults.forward]\ntype = \"x\"", "defaults.forward"),
        ] {
            let text = format!("[backend]\ntype = \"memory\"\n{text}");
            let error = Config::from_toml(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
