//! Parsers for the values of arguments.

use dq_core::{JobState, QueueName, Rate};
use serde::de::DeserializeOwned;

/// Formats an error with its remedy.
fn refused(error: &dq_core::Error) -> String {
    match error.remedy_text() {
        Some(remedy) => format!("{} ({remedy})", error.message()),
        None => error.message().to_owned(),
    }
}

/// Makes a parser's error one line of text.
pub(crate) fn by<T>(
    parse: impl Fn(&str) -> dq_core::Result<T> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| parse(text).map_err(|error| refused(&error))
}

/// A limit, or `none`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OrNone<T>(pub(crate) Option<T>);

pub(crate) fn max_running(text: &str) -> Result<OrNone<u32>, String> {
    match text {
        "none" => Ok(OrNone(None)),
        "0" => Err("it must be at least 1; to stop the queue, use `dq pause`".to_owned()),
        _ => text
            .parse()
            .map(|max| OrNone(Some(max)))
            .map_err(|_| "it is not a whole number or \"none\"".to_owned()),
    }
}

pub(crate) fn rate(text: &str) -> Result<OrNone<Rate>, String> {
    match text {
        "none" => Ok(OrNone(None)),
        _ => by(|text: &str| text.parse::<Rate>())(text).map(|rate| OrNone(Some(rate))),
    }
}

pub(crate) fn queue(text: &str) -> Result<QueueName, String> {
    by(|text| QueueName::new(text))(text)
}

/// Refuses an option in place of the value, as in `--token $EMPTY --api URL`. Give a token that
/// begins with two hyphens in DQ_TOKEN.
pub(crate) fn token(text: &str) -> Result<String, &'static str> {
    if text.starts_with("--") { Err("the token is missing") } else { Ok(text.to_owned()) }
}

pub(crate) fn state(text: &str) -> Result<JobState, &'static str> {
    word(text).map_err(|_| "the states are running, ready, scheduled, dead and ended")
}

pub(crate) fn at_least_one(text: &str) -> Result<usize, &'static str> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1"),
        number => number.map_err(|_| "it is not a whole number"),
    }
}

/// Parses a value; every variant is a single word.
pub(crate) fn word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let value = serde_json::Value::String(text.to_owned());
    serde_json::from_value(value).map_err(|error| error.to_string())
}

pub(crate) fn header(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "it has no `=`".to_owned())
}
