//! What is wrong with a configuration, in words that show no password.
//!
//! What stands under `backend` and `drain` may be secret, so nothing of it is repeated but the names
//! of keys and the backend's `type`. Of all other values, only what a sentence about them says.

use std::borrow::Cow;

use figment::error::{Actual, Kind, OneOf};
use figment::value::{Dict, Value};

use super::backend::{BackendConfig, known_backends};

/// The tables whose values may be secrets.
pub(super) const SECRETIVE: [&str; 2] = ["backend", "drain"];

/// What is wrong with a value, told by somebody who does not know where it stands.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) what: String,
    /// Empty if `what` says it all.
    pub(super) remedy: Cow<'static, str>,
}

impl Fault {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: "".into() }
    }

    pub(super) fn remedy(self, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }
}

/// The value at a path of keys and indices.
pub(super) fn value_at<'a>(values: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(values, |value, key| match value {
        Value::Dict(_, dict) => dict.get(key),
        Value::Array(_, values) => values.get(key.parse::<usize>().ok()?),
        _ => None,
    })
}

/// A file that is no TOML. The parser shows the line, which may hold a password: what is kept is
/// the text before and after.
pub(super) fn syntax(error: &figment::Error) -> Fault {
    let text = error.kind.to_string();
    let (place, shown) = text.split_once('\n').unwrap_or((&text, ""));
    let lines: Vec<_> = shown.lines().collect();
    let caret = lines.iter().rposition(|line| line.trim_start().starts_with('|'));
    let reason = lines[caret.map_or(lines.len(), |caret| caret + 1)..].join(", ");
    if reason.is_empty() { Fault::new(place) } else { Fault::new(format!("{place}: {reason}")) }
}

/// The path of the value that was refused, and why.
pub(super) fn found(error: figment::Error, values: &Value) -> (Vec<String>, Fault) {
    let figment::Error { mut path, kind, .. } = error;
    let secretive = path.first().is_some_and(|first| SECRETIVE.contains(&first.as_str()));
    let dict = value_at(values, &path).and_then(Value::as_dict);
    let key = match (&kind, dict) {
        (Kind::UnknownField(key, _), Some(dict)) => dict.contains_key(key).then(|| key.clone()),
        (_, Some(dict)) if secretive => culprit(dict, &kind),
        _ => None,
    };
    path.extend(key);
    let refused = value_at(values, &path);
    let mut fault = discreet(&kind, path.len() == 2 && secretive && path[1] == "type" || path.last().is_some_and(|k| k == "type"));
    if let (true, Some(refused)) = (secretive, refused) {
        fault.what = without(fault.what, refused);
    }
    (path, fault)
}
