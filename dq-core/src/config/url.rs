//! URLs that name a store.

use std::fmt;

use super::secret::Secret;
use crate::error::{Error, ErrorKind, Result};

/// A URL split into scheme, address and options: `scheme://address?option=value&…`.
///
/// The address is left as written, because its meaning is the backend's: a file for `sqlite`, a
/// host for others. `Debug` shows the scheme only, since the address may hold a password.
#[derive(Clone)]
pub struct ConnectUrl {
    whole: Secret,
    scheme: String,
    address: Secret,
    options: Vec<(String, String)>,
}

impl ConnectUrl {
    /// Splits a URL.
    ///
    /// # Errors
    /// `Config` if there is no scheme, or an option has no value.
    pub fn parse(url: &str) -> Result<Self> {
        let malformed = |what: String| {
            Error::new(ErrorKind::Config, what)
                .remedy("URLs look like sqlite://jobs.db, memory:, or redis://host:6379/0")
                .operation("connect")
        };
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(malformed("the URL has no scheme".to_owned()));
        };
        let well_formed = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        if !well_formed {
            return Err(malformed("the URL does not begin with a scheme".to_owned()));
        }
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(malformed(format!("the URL's option {pair:?} has no value")));
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

    /// The scheme in lower case.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// What stands between scheme and options, as written.
    #[must_use]
    pub fn address(&self) -> &str {
        self.address.expose()
    }

    /// The whole URL, for a client library that parses it itself.
    #[must_use]
    pub const fn whole(&self) -> &Secret {
        &self.whole
    }

    /// The options in order.
    #[must_use]
    pub fn options(&self) -> &[(String, String)] {
        &self.options
    }

    /// Refuses options that are not among `known`.
    ///
    /// # Errors
    /// `Config` naming the option and the known ones.
    pub fn expect_options(&self, known: &[&str]) -> Result<()> {
        match self.options.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) => {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                Err(Error::new(
                    ErrorKind::Config,
                    format!("a {} URL has no option {name:?}; known: {known}", self.scheme),
                )
                .operation("connect"))
            }
        }
    }
}

impl fmt::Debug for ConnectUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectUrl").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_and_never_shows_the_address() {
        let url = ConnectUrl::parse("redis://user:hunter2@host/1?pool=4").unwrap();
        assert_eq!(url.scheme(), "redis");
        assert_eq!(url.address(), "user:hunter2@host/1");
        assert_eq!(url.options(), [("pool".to_owned(), "4".to_owned())]);
        assert!(!format!("{url:?}").contains("hunter2"));
        assert!(url.expect_options(&["pool"]).is_ok());
        assert!(url.expect_options(&[]).is_err());
    }

    #[test]
    fn malformed_urls_are_refused_without_repeating_them() {
        for url in ["", "jobs.db", "://x", "1a:b", "sqlite://f?x"] {
            let error = ConnectUrl::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
        }
    }
}
