//! Environment variables that set configuration keys: `DQ_TABLE__KEY`.

use figment::value::{Dict, Map, Value};
use figment::{Metadata, Profile, Provider};

use super::problem::number_text;
use crate::error::{Error, ErrorKind, Result};

/// One environment variable, as its own layer so that an error can name it.
#[derive(Debug)]
pub(super) struct Variable {
    name: String,
    /// The key it sets, outermost table first.
    path: Vec<String>,
    value: Value,
}

impl Variable {
    /// Maps `DQ_A__B__C` to `a.b.c`; queue and schedule names keep their case. `None` if the name
    /// sets no key: the application owns names without `__`.
    pub(super) fn new(name: &str, value: &str) -> Option<Self> {
        let (prefix, key) = name.split_at_checked(3)?;
        if !prefix.eq_ignore_ascii_case("DQ_") || !key.contains("__") {
            return None;
        }
        let mut path: Vec<String> = key.split("__").map(str::to_owned).collect();
        path[0].make_ascii_lowercase();
        let first_key = if ["queues", "schedules"].contains(&path[0].as_str()) { 2 } else { 1 };
        path.iter_mut().skip(first_key).for_each(|key| key.make_ascii_lowercase());
        // Passwords, tokens, and webhook headers such as `authorization`.
        let may_be_secret = ["backend", "drain", "serve"].contains(&path[0].as_str())
            || path.iter().any(|key| key == "headers");
        let value = parse_value(value, may_be_secret);
        Some(Self { name: name.to_owned(), path, value })
    }

    /// Returns this process's variables, sorted by name.
    pub(super) fn all() -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for (name, value) in std::env::vars_os() {
            let Some(name) = name.to_str() else { continue };
            if let Some(intended) = intended_name(name) {
                return Err(Error::new(
                    ErrorKind::Config,
                    format!("the environment variable {name} sets nothing"),
                )
                .remedy(format!("separate table and key by two underscores: {intended}"))
                .operation("read the configuration"));
            }
            all.extend(Self::new(name, &value.to_string_lossy()));
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }
}

/// The configuration's tables, as variables name them.
const TABLES: [&str; 9] =
    ["BACKEND", "DEFAULTS", "DRAIN", "INGRESS", "LIMITS", "QUEUES", "RUNNER", "SCHEDULES", "SERVE"];

/// Corrects `DQ_BACKEND_PATH` to `DQ_BACKEND__PATH`. `None` if the name is correct or not a
/// setting.
fn intended_name(name: &str) -> Option<String> {
    let key = name.strip_prefix("DQ_")?;
    let (table, rest) = key.split_once('_')?;
    let is_misspelt = !key.contains("__") && TABLES.contains(&table);
    is_misspelt.then(|| format!("DQ_{table}__{rest}"))
}

/// Parses a number, a boolean, a list, a table, or quoted text. Anything else is text; the spaces
/// around it stay only if it has a comma or a bracket.
fn parse_value(text: &str, may_be_secret: bool) -> Value {
    let Ok(value) = text.parse::<Value>();
    match value {
        // A password like 007 or 1.50 must not lose a digit as a number.
        Value::Num(_, number)
            if may_be_secret && number_text(&number.to_actual()).as_deref() != Some(text) =>
        {
            text.into()
        }
        value => value,
    }
}

impl Provider for Variable {
    fn metadata(&self) -> Metadata {
        Metadata::named(format!("environment variable {}", self.name))
    }

    fn data(&self) -> figment::error::Result<Map<Profile, Dict>> {
        let nest = |value, key: &String| Value::from(Dict::from([(key.clone(), value)]));
        let table = self.path.iter().rev().fold(self.value.clone(), nest);
        Ok(Profile::Default.collect(table.into_dict().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_variables_are_left_alone() {
        for name in ["PATH", "DQ_DATA", "DQ_DATA_DIR", "DQ_BACKEND", "D", "DÖ_A__B", "ADQ_A__B"] {
            assert!(Variable::new(name, "x").is_none() && intended_name(name).is_none(), "{name}");
        }
    }

    #[test]
    fn numbers_are_numbers_unless_a_password_would_lose_a_digit() {
        let value = |name, text| Variable::new(name, text).unwrap().value;
        for text in ["007", "1.50", "+1", " 1", "99999999999999999999999"] {
            assert_eq!(value("DQ_BACKEND__PASSWORD", text), text.into(), "{text}");
            assert_eq!(value("DQ_SERVE__TOKENS__ANN__TOKEN", text), text.into(), "{text}");
        }
        assert_eq!(value("DQ_BACKEND__CACHE_MIB", "64"), Value::from(64_usize));
        assert_eq!(value("DQ_DEFAULTS__BACKOFF__FACTOR", "1.50"), Value::from(1.5));
    }
}
