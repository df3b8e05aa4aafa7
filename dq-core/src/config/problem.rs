//! Turns configuration parser errors into messages without secrets.
//!
//! Values under `backend` and `drain` may be secrets. Messages about them show only key names, the
//! backend's `type`, `true` or `false`, and out-of-range numbers. They describe any other value by
//! its kind or replace it by `***`.

use std::borrow::Cow;

use figment::error::{Actual, Kind};
use figment::value::{Dict, Num, Value};

use super::backend::{BackendConfig, known_backends, missing_backend_remedy};

/// Top-level tables with errors that may repeat secrets, because typetag turns them into text.
/// Other errors are described without the value.
pub(super) const SECRET_TABLES: [&str; 2] = ["backend", "drain"];

const TAG: &str = "type";

/// The caller adds the place.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) what: String,
    /// Empty if `what` suffices.
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
    if reason.is_empty() {
        Problem::new(position)
    } else {
        Problem::new(format!("{position}: {reason}"))
    }
}

/// Finds the refused value's path, and describes the problem.
pub(super) fn locate(error: figment::Error, values: &Value) -> (Vec<String>, Problem) {
    let figment::Error { mut path, mut kind, .. } = error;
    let may_be_secret = path.first().is_some_and(|first| SECRET_TABLES.contains(&first.as_str()));
    let dict = value_at(values, &path).and_then(Value::as_dict);
    let key = match (&kind, dict) {
        // A backend's settings: the error does not name the key.
        (_, Some(settings)) if may_be_secret => deserialize_error(settings).and_then(|refined| {
            kind = refined;
            refused_key(settings, &kind)
        }),
        (Kind::UnknownField(key, _), Some(dict)) => dict.get_key_value(key).map(|(key, _)| key),
        _ => None,
    };
    path.extend(key.cloned());
    let is_tag = may_be_secret && path.last().is_some_and(|key| key == TAG);
    let problem = match &kind {
        Kind::UnknownVariant(name, known) if is_tag => {
            let known = quoted(known);
            Problem::new(format!("no backend is called {name:?}; known: {known}"))
                .remedy(missing_backend_remedy(name))
        }
        Kind::MissingField(key) if may_be_secret && key == TAG => missing_tag(),
        _ if is_tag => Problem::new("it must be the name of a backend, in quotes"),
        Kind::MissingField(key) if path.is_empty() && key == "backend" => {
            Problem::new("there is no [backend]").remedy(
                "add the table with a `type`, or set the variable DQ_BACKEND__TYPE: memory, \
                 sqlite, or the type of another enabled backend",
            )
        }
        Kind::MissingField(key) if may_be_secret => missing_setting(key, &path),
        Kind::Message(text) if may_be_secret && missing_field(text).is_some() => {
            missing_setting(missing_field(text).unwrap_or_default(), &path)
        }
        _ => {
            let problem = describe(&kind);
            match value_at(values, &path).filter(|_| may_be_secret) {
                Some(refused) => Problem { what: redact(problem.what, refused), ..problem },
                None => problem,
            }
        }
    };
    (path, problem)
}

fn missing_tag() -> Problem {
    // `Config` has already reported duplicate names.
    let known = known_backends().unwrap_or_default();
    let known = quoted(&known.into_keys().collect::<Vec<_>>());
    Problem::new(format!("`{TAG}` is missing; known: {known}")).remedy(
        "give the type and its settings, such as `type = \"sqlite\"` and `path = \"jobs.db\"`, or \
         a URL instead (`--url`; in code, `Dq::connect`)",
    )
}

/// Parses the key from figment's text. A backend's errors are text, because typetag erases their
/// type.
fn missing_field(text: &str) -> Option<&str> {
    text.strip_prefix("missing field `")?.strip_suffix('`')
}

/// Parses the known keys from figment's text.
fn known_fields(text: &str) -> Option<String> {
    let (_, known) = text.strip_prefix("unknown field: ")?.rsplit_once("`, expected `")?;
    // The text also puts backquotes around the whole list.
    let known = known.strip_suffix('`')?;
    let known = known.strip_prefix("one of ").unwrap_or(known);
    Some(known.replace("` or `", "`, `"))
}

fn missing_setting(key: &str, path: &[String]) -> Problem {
    let problem = Problem::new(format!("`{key}` is missing"));
    match path {
        [table] if table == "backend" => {
            let variable = key.to_uppercase();
            problem.remedy(format!(
                "add `{key} = …` beside `{TAG}`, or set the variable DQ_BACKEND__{variable}"
            ))
        }
        _ => problem.remedy(format!("add `{key} = …` beside `{TAG}`")),
    }
}

fn deserialize_error(settings: &Dict) -> Option<Kind> {
    let result = Value::from(settings.clone()).deserialize::<Box<dyn BackendConfig>>();
    result.err().map(|error| error.kind)
}

/// Finds the refused key: alone beside `type` it causes the same error. `None` if the error is not
/// about one setting, such as a missing key.
///
/// The error does not name the key, because typetag buffers all settings before it knows their
/// type.
fn refused_key<'a>(settings: &'a Dict, kind: &Kind) -> Option<&'a String> {
    let (tag, name) = settings.get_key_value(TAG)?;
    let mut subset = Dict::from([(tag.clone(), name.clone())]);
    if deserialize_error(&subset).as_ref() == Some(kind) {
        // The type is unknown, or a key is missing.
        let is_missing_key = matches!(kind, Kind::MissingField(_) | Kind::Message(_));
        return (!is_missing_key).then_some(tag);
    }
    settings.iter().filter(|(key, _)| *key != tag).find_map(|(key, value)| {
        subset.insert(key.clone(), value.clone());
        let same_error = deserialize_error(&subset).as_ref() == Some(kind);
        subset.remove(key);
        same_error.then_some(key)
    })
}

fn describe(kind: &Kind) -> Problem {
    match kind {
        Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) => {
            let found = match found {
                Actual::Bool(_) => "true or false",
                Actual::Unsigned(_) | Actual::Signed(_) | Actual::Float(_) => "a number",
                Actual::Char(_) | Actual::Str(_) => "text",
                Actual::Seq => "a list",
                Actual::Map => "a table",
                _ => "something else",
            };
            // Rust type names mean nothing to the author of a file.
            let expected = match expected.as_str() {
                _ if expected.starts_with("dyn ") => {
                    "a table with a type and its settings; URLs are for Dq::connect"
                }
                "struct BackoffSettings" => {
                    "a table, such as `{ initial = \"1s\", factor = 2.0, max = \"10m\", jitter = 0.2 }`"
                }
                _ if expected.starts_with("struct ") => "a table",
                "usize" | "u32" => "a whole number, 0 or more",
                "a sequence" => "a list",
                other => other,
            };
            Problem::new(format!("found {found}, expected {expected}"))
        }
        Kind::UnknownField(_, known) => {
            Problem::new(format!("unknown key; known: {}", quoted(known)))
        }
        Kind::Message(text) if known_fields(text).is_some() => {
            let known = known_fields(text).unwrap_or_default();
            Problem::new(format!("unknown key; known: {known}"))
        }
        // Figment puts backquotes around a list although its items have them.
        kind => Problem::new(kind.to_string().replace("``", "`").replace("`one of ", "one of ")),
    }
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn redact(message: String, refused: &Value) -> String {
    match refused {
        Value::Dict(_, dict) => dict.values().fold(message, redact),
        Value::Array(_, values) => values.iter().fold(message, redact),
        Value::String(_, text) => redact_text(&message.replace(&format!("{text:?}"), "***"), text),
        // If text was expected, the number may be a password of digits.
        Value::Num(_, number) if message.starts_with("invalid type") => {
            redact_text(&message, &number_text(*number))
        }
        _ => message,
    }
}

/// Replaces a text by `***`. A text under four bytes must be a whole word, because every message
/// contains an `a`.
fn redact_text(message: &str, text: &str) -> String {
    let mut result = String::new();
    let mut rest = message;
    while let Some(start) = rest.find(text).filter(|_| !text.is_empty()) {
        let (before, after) = (&rest[..start], &rest[start + text.len()..]);
        let is_part_of_word = result.ends_with(char::is_alphanumeric) && before.is_empty()
            || before.ends_with(char::is_alphanumeric)
            || after.starts_with(char::is_alphanumeric);
        result.push_str(before);
        result.push_str(if is_part_of_word && text.len() < 4 { text } else { "***" });
        rest = after;
    }
    result + rest
}

/// A number in its shortest decimal form.
pub(super) fn number_text(number: Num) -> String {
    match number.to_actual() {
        Actual::Unsigned(number) => number.to_string(),
        Actual::Signed(number) => number.to_string(),
        Actual::Float(number) => number.to_string(),
        _ => unreachable!("a number is unsigned, signed or a float"),
    }
}
