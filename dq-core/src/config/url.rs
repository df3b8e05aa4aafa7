//! Connection URLs for stores.

use std::fmt;

use figment::value::Dict;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::problem::{self, Problem};
use super::secret::Secret;
use super::store::invalid_setting;
use crate::error::{Error, ErrorKind, Result};

/// A URL split into scheme, address and options: `scheme://address?option=value&…`.
///
/// Each backend parses the address itself: a file for `sqlite`, a host for others. `Debug` and
/// errors show only the scheme, because a password with a `?` or an `&` extends into the options.
#[derive(Clone)]
pub struct ConnectUrl {
    whole: Secret,
    scheme: String,
    address: Secret,
    options: Vec<(String, String)>,
}

impl ConnectUrl {
    /// Splits a URL into scheme, address and options.
    ///
    /// # Errors
    /// `Config` if there is no scheme, or an option has no value.
    pub fn parse(url: &str) -> Result<Self> {
        const EXAMPLES: &str = "URLs look like sqlite://jobs.db, memory:, or redis://host:6379/0";
        let malformed = |what: &'static str| invalid_setting(what, EXAMPLES);
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(malformed("the URL has no scheme"));
        };
        let well_formed = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        if !well_formed {
            return Err(malformed("the URL does not begin with a scheme"));
        }
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(malformed("the URL has an option without a value"));
            };
            options.push((name.to_owned(), value.to_owned()));
        }
        Ok(Self {
            whole: Secret::new(url),
            scheme: scheme.to_ascii_lowercase(),
            address: Secret::new(address),
            options,
        })
    }

    /// Returns the scheme in lower case.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Returns the part between scheme and options, as written.
    pub fn address(&self) -> &str {
        self.address.expose()
    }

    /// Returns the options in order.
    pub fn options(&self) -> &[(String, String)] {
        &self.options
    }

    /// Parses the `url` field in a backend's settings.
    ///
    /// The URL may have only `address_options`; `settings` are fields beside `url`. Errors omit
    /// other option names, which may be part of a password with a `?`.
    ///
    /// # Errors
    /// `Config` if the URL is malformed or has an option outside the address.
    pub fn from_field(field: &Secret, address_options: &[&str], settings: &[&str]) -> Result<Self> {
        let url = Self::parse(field.expose())?;
        let refused = |(name, _): &&(String, String)| !address_options.contains(&name.as_str());
        let Some((name, _)) = url.options.iter().find(refused) else {
            return Ok(url);
        };
        Err(match settings.contains(&name.as_str()) {
            true => invalid_setting(
                format!("the field `url` has the option `{name}`, which is a separate field"),
                format!("write `{name} = …` beside `url`, and remove it from the address"),
            ),
            false => invalid_setting(
                "the field `url` has an unknown option",
                "write settings as fields beside it, such as `prefix = …`, and `?` in a password \
                 as %3F",
            ),
        })
    }

    /// Converts the URL to settings: `url` with its `address_options`, and a field per other
    /// option.
    ///
    /// Values are text. In the fields listed in `typed`, numbers and booleans are parsed.
    pub fn to_fields(&self, address_options: &[&str], typed: &[&str]) -> Value {
        let is_address_option = |name: &String| address_options.contains(&name.as_str());
        let whole = self.whole.expose();
        let mut url = whole.split_once('?').map_or(whole, |(address, _)| address).to_owned();
        let (kept_options, settings): (Vec<_>, Vec<_>) =
            self.options.iter().partition(|(name, _)| is_address_option(name));
        for (index, (name, value)) in kept_options.into_iter().enumerate() {
            let separator = if index == 0 { '?' } else { '&' };
            url.push_str(&format!("{separator}{name}={value}"));
        }
        let mut fields = Map::new();
        fields.insert("url".to_owned(), url.into());
        for (name, value) in settings {
            let parsed = typed.contains(&name.as_str()).then(|| number_or_boolean(value)).flatten();
            fields.insert(name.clone(), parsed.unwrap_or_else(|| value.as_str().into()));
        }
        fields.into()
    }

    /// Deserializes `fields`, which contain this URL's options.
    ///
    /// # Errors
    /// `Config` with the invalid option and the expected kind of value, but not the value, which
    /// may be part of a password.
    pub fn deserialize<T: DeserializeOwned>(&self, fields: Value) -> Result<T> {
        let fields =
            figment::value::Value::serialize(fields).unwrap_or_else(|_| Dict::new().into());
        fields.deserialize().map_err(|error| {
            let (path, Problem { what, .. }) = problem::locate(error, Some(&fields));
            // All options are text.
            let what = what.strip_prefix("found text, ").unwrap_or(&what);
            let scheme = &self.scheme;
            let is_option = |key: &&String| self.options.iter().any(|(name, _)| name == *key);
            let what = match path.first().filter(is_option) {
                Some(name) => format!("the option `{name}` of the {scheme} URL is invalid: {what}"),
                None => format!("the options of the {scheme} URL are invalid: {what}"),
            };
            Error::new(ErrorKind::Config, what).operation("connect")
        })
    }

    /// Checks that all options are in `known`.
    ///
    /// # Errors
    /// `Config` with the known options, and the unknown one unless it may be part of a password.
    pub fn expect_options(&self, known: &[&str]) -> Result<()> {
        let unknown = |(name, _): &(String, String)| !known.contains(&name.as_str());
        let Some(index) = self.options.iter().position(unknown) else {
            return Ok(());
        };
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let (scheme, number) = (&self.scheme, index + 1);
        let what = match self.is_safe_to_show(index) {
            true => format!("a {scheme} URL has no option {:?}", self.options[index].0),
            false => format!("option {number} of the {scheme} URL is unknown"),
        };
        let what = format!("{what}; known: {known}");
        Err(Error::new(ErrorKind::Config, what).operation("connect"))
    }

    /// Returns whether an option name cannot be part of a secret. A password with a `?` is followed
    /// by an `@`; an option value with an `&` comes before the name.
    fn is_safe_to_show(&self, index: usize) -> bool {
        let (name, _) = &self.options[index];
        let is_word_char =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
        index == 0
            && (1..=32).contains(&name.len())
            && name.chars().all(is_word_char)
            && !self.whole.expose().contains('@')
    }
}

fn number_or_boolean(text: &str) -> Option<Value> {
    let number = text.parse::<u64>().map(Value::from);
    number.or_else(|_| text.parse::<bool>().map(Value::from)).ok()
}

impl fmt::Debug for ConnectUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectUrl").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

/// Parses a host: `name`, `name:port` or `[IPv6]:port`; `None` if it is malformed.
pub fn host_and_port(text: &str, default: u16) -> Option<(String, u16)> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok()?,
        None if port.is_empty() => default,
        None => return None,
    };
    if name.is_empty() || name.contains(char::is_whitespace) {
        return None;
    }
    Some((name.to_owned(), port))
}

/// Formats a host and port for messages, with brackets around an IPv6 address.
pub fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_split_and_debug_hides_the_address() {
        let url = ConnectUrl::parse("redis://user:hunter2@host/1?pool=4").unwrap();
        assert_eq!(url.scheme(), "redis");
        assert_eq!(url.address(), "user:hunter2@host/1");
        assert_eq!(url.options(), [("pool".to_owned(), "4".to_owned())]);
        assert!(!format!("{url:?}").contains("hunter2"));
        assert!(url.expect_options(&["pool"]).is_ok());
        assert!(url.expect_options(&[]).is_err());
    }

    #[test]
    fn errors_contain_no_part_of_a_password() {
        for url in [
            "redis://user:hunter?2secret@host/0",
            "redis://user:hunter?2secret=@host/0",
            "redis://user:hunter?2secret=x&pool=4@host/0",
            "redis://host?pool=hunter&2secret=1",
            "redis://host?pool=hunter&2secret",
            "redis://host?2secret!=1",
            "redis:2secret?2secret",
            "2secret:x",
        ] {
            let refused = ConnectUrl::parse(url).and_then(|url| url.expect_options(&["pool"]));
            let error = refused.unwrap_err();
            assert!(!format!("{error:?}").contains("2secret"), "{url}: {error}");
        }
    }

    #[test]
    fn options_of_a_url_become_fields() {
        let url = ConnectUrl::parse("redis://u:p@h/0?prefix=9&tls=true&a=09&b=x&c=true").unwrap();
        let expected = serde_json::json!({
            "url": "redis://u:p@h/0?tls=true", "prefix": "9", "a": 9, "b": "x", "c": true,
        });
        assert_eq!(url.to_fields(&["tls"], &["a", "b", "c"]), expected);
    }
}
