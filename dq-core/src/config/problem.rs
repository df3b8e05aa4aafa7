//! Describes refused settings, without the values of stores and servers, which may be secret.

use std::borrow::Cow;

use figment::error::{Actual, Kind};
use figment::value::Value;

/// A refused setting: the problem and its remedy. The caller adds the place.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) what: String,
    /// Empty for none.
    pub(super) remedy: Cow<'static, str>,
}

impl Problem {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: "".into() }
    }

    pub(super) fn remedy(self, remedy: impl Into<Cow<'static, str>>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }
}

/// Finds the value at a path of keys and positions.
pub(super) fn value_at<'a>(values: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(values, |value, key| match value {
        Value::Dict(_, dict) => dict.get(key),
        Value::Array(_, values) => values.get(key.parse::<usize>().ok()?),
        _ => None,
    })
}

/// Describes a TOML syntax error without the quoted line, which may contain a password.
pub(super) fn syntax_problem(error: &figment::Error) -> Problem {
    let text = error.kind.to_string();
    let (position, quoted) = text.split_once('\n').unwrap_or((&text, ""));
    let lines: Vec<_> = quoted.lines().collect();
    let caret = lines.iter().rposition(|line| line.trim_start().starts_with('|'));
    let reason = lines[caret.map_or(lines.len(), |caret| caret + 1)..].join(", ");
    match reason.is_empty() {
        true => Problem::new(position),
        false => Problem::new(format!("{position}: {reason}")),
    }
}

/// Returns the refused value's path, and the problem.
///
/// `secret` has the values that must not show; a message by the settings' own type may repeat them.
pub(super) fn locate(error: figment::Error, secret: Option<&Value>) -> (Vec<String>, Problem) {
    let figment::Error { mut path, kind, .. } = error;
    if let Kind::UnknownField(key, _) = &kind
        && path.last() != Some(key)
    {
        path.push(key.clone());
    }
    let secret = secret.and_then(|values| value_at(values, &path));
    let what = match (kind, secret) {
        (Kind::Message(text), Some(refused)) => redact(text, refused),
        (kind, _) => describe(&kind),
    };
    (path, Problem::new(what))
}

fn describe(kind: &Kind) -> String {
    match kind {
        Kind::InvalidType(found, expected) => {
            let found = match found {
                Actual::Bool(_) => "true or false",
                Actual::Unsigned(_) | Actual::Signed(_) | Actual::Float(_) => "a number",
                Actual::Char(_) | Actual::Str(_) => "text",
                Actual::Seq => "a list",
                Actual::Map => "a table",
                _ => "something else",
            };
            format!("found {found}, expected {}", in_toml(expected))
        }
        Kind::InvalidValue(found, expected) => match number_text(found) {
            Some(out_of_range) => format!("found {out_of_range}, expected {}", in_toml(expected)),
            None => format!("expected {}", in_toml(expected)),
        },
        Kind::UnknownVariant(_, known) => {
            let known: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
            format!("expected {}", known.join(" or "))
        }
        Kind::UnknownField(_, known) => format!("unknown key; known: {}", quoted(known)),
        Kind::MissingField(key) => format!("`{key}` is missing"),
        Kind::Message(text) => text.clone(),
        _ => "the value is not valid".to_owned(),
    }
}

/// Names an expected Rust type in words for the author of a file.
fn in_toml(expected: &str) -> &str {
    match expected {
        "struct BackoffSettings" => {
            "a table, such as `{ initial = \"1s\", factor = 2.0, max = \"10m\", jitter = 0.2 }`"
        }
        "a map" => "a table",
        _ if expected.starts_with("struct ") => "a table",
        "u16" => "a whole number, 0 to 65535",
        "usize" | "u32" => "a whole number, 0 or more",
        "a sequence" => "a list",
        other => other,
    }
}

pub(super) fn quoted(names: &[&str]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Replaces the refused text by `***`, unless it is a number. Text under four bytes, such as `a`,
/// is replaced only in quotes, because it may be a part of other words.
fn redact(message: String, refused: &Value) -> String {
    match refused {
        Value::Dict(_, dict) => dict.values().fold(message, redact),
        Value::Array(_, values) => values.iter().fold(message, redact),
        Value::String(_, text) if text.parse::<f64>().is_err() => {
            let message = message.replace(&format!("{text:?}"), "***");
            if text.len() < 4 { message } else { message.replace(text, "***") }
        }
        _ => message,
    }
}

/// Formats a number in its shortest decimal form; `None` for other values.
pub(super) fn number_text(value: &Actual) -> Option<String> {
    match value {
        Actual::Unsigned(number) => Some(number.to_string()),
        Actual::Signed(number) => Some(number.to_string()),
        Actual::Float(number) => Some(number.to_string()),
        _ => None,
    }
}
