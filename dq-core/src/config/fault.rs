//! What is wrong with a configuration, in words that show no password.
//!
//! What stands under `backend` and `drain` may be secret, so nothing of it is repeated but the names
//! of keys, the backend's `type`, and numbers where a number is wanted. Of all other values, only what
//! a sentence about them says.

use std::borrow::Cow;

use figment::error::{Actual, Kind};
use figment::value::{Dict, Num, Value};

use super::backend::BackendConfig;

/// The tables whose values may be secrets.
pub(super) const SECRETIVE: [&str; 2] = ["backend", "drain"];

/// The key beside a backend's settings that says whose they are.
const TAG: &str = "type";

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
    let figment::Error { mut path, mut kind, .. } = error;
    let secretive = path.first().is_some_and(|first| SECRETIVE.contains(&first.as_str()));
    let dict = value_at(values, &path).and_then(Value::as_dict);
    let key = match (&kind, dict) {
        (_, Some(settings)) if secretive => refusal(settings).and_then(|refusal| {
            kind = refusal;
            culprit(settings, &kind)
        }),
        (Kind::UnknownField(key, _), Some(dict)) => dict.get_key_value(key).map(|(key, _)| key),
        _ => None,
    };
    path.extend(key.cloned());
    let tag = secretive && path.last().is_some_and(|key| key == TAG);
    let fault = match &kind {
        Kind::UnknownVariant(name, known) if tag => {
            let known = quoted(known);
            Fault::new(format!("no backend is called {name:?}; known: {known}")).remedy(
                "is the backend's crate linked? a crate that is never named in code registers \
                 nothing: `use its_crate as _;`",
            )
        }
        _ if tag => Fault::new("it must be the name of a backend, in quotes"),
        Kind::MissingField(key) if path.is_empty() && key == "backend" => {
            Fault::new("there is no [backend]")
                .remedy("add it, with its type: memory, sqlite, or that of another linked crate")
        }
        _ => {
            let fault = in_words(&kind);
            match value_at(values, &path).filter(|_| secretive) {
                Some(refused) => Fault { what: without(fault.what, refused), ..fault },
                None => fault,
            }
        }
    };
    (path, fault)
}

/// Why a backend's settings are refused, told by the settings alone.
fn refusal(settings: &Dict) -> Option<Kind> {
    let read = Value::from(settings.clone()).deserialize::<Box<dyn BackendConfig>>();
    read.err().map(|error| error.kind)
}

/// Which of a backend's settings is to blame: the one that is refused in the same way without the
/// others. The error does not say, since they are read together, before their type is known.
fn culprit<'a>(settings: &'a Dict, kind: &Kind) -> Option<&'a String> {
    let (tag, name) = settings.get_key_value(TAG)?;
    let mut few = Dict::from([(tag.clone(), name.clone())]);
    if refusal(&few).as_ref() == Some(kind) {
        // The type itself is unknown, or what is to blame is not there.
        let absent = matches!(kind, Kind::MissingField(_) | Kind::Message(_));
        return (!absent).then_some(tag);
    }
    settings.iter().filter(|(key, _)| *key != tag).find_map(|(key, value)| {
        few.insert(key.clone(), value.clone());
        let alike = refusal(&few).as_ref() == Some(kind);
        few.remove(key);
        alike.then_some(key)
    })
}

/// Figment's words, without the value that was found.
fn in_words(kind: &Kind) -> Fault {
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
            // The names of our types mean nothing to who writes a file.
            let expected = match expected.as_str() {
                _ if expected.starts_with("dyn ") => {
                    "a table with a type and its settings; URLs are for Dq::connect"
                }
                _ if expected.starts_with("struct ") => "a table",
                "usize" | "u32" => "a whole number, 0 or more",
                "a sequence" => "a list",
                other => other,
            };
            Fault::new(format!("found {found}, expected {expected}"))
        }
        Kind::UnknownField(_, known) => {
            Fault::new(format!("unknown key; known: {}", quoted(known)))
        }
        // Figment puts a list that is quoted in quotes.
        kind => Fault::new(kind.to_string().replace("``", "`").replace("`one of ", "one of ")),
    }
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The sentence with stars wherever it repeats a refused value.
fn without(sentence: String, refused: &Value) -> String {
    match refused {
        Value::Dict(_, dict) => dict.values().fold(sentence, without),
        Value::Array(_, values) => values.iter().fold(sentence, without),
        Value::String(_, text) => starred(&sentence.replace(&format!("{text:?}"), "***"), text),
        // Text was wanted: it may be a password of digits.
        Value::Num(_, number) if sentence.starts_with("invalid type") => {
            starred(&sentence, &written(*number))
        }
        _ => sentence,
    }
}

/// Puts stars over a text; over a short one only where it is a word, as every sentence has an `a`.
fn starred(sentence: &str, text: &str) -> String {
    let mut result = String::new();
    let mut rest = sentence;
    while let Some(place) = rest.find(text).filter(|_| !text.is_empty()) {
        let (before, after) = (&rest[..place], &rest[place + text.len()..]);
        let inside = result.ends_with(char::is_alphanumeric) && before.is_empty()
            || before.ends_with(char::is_alphanumeric)
            || after.starts_with(char::is_alphanumeric);
        result.push_str(before);
        result.push_str(if inside && text.len() < 4 { text } else { "***" });
        rest = after;
    }
    result + rest
}

/// A number as people write it.
pub(super) fn written(number: Num) -> String {
    match number.to_actual() {
        Actual::Unsigned(number) => number.to_string(),
        Actual::Signed(number) => number.to_string(),
        Actual::Float(number) => number.to_string(),
        _ => unreachable!("a number is one of the three"),
    }
}
