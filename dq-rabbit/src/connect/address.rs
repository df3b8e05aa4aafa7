//! Addresses, as they are written in URLs.
//!
//! `SCHEME://[user[:password]@]host[:port][,host[:port]…][/vhost]`. User, password and virtual host
//! are percent-encoded.

use dq_core::config::host_and_port;
use dq_core::{Error, ErrorKind, Result};
use percent_encoding::percent_decode_str;

const PORT: u16 = 5672;
const TLS_PORT: u16 = 5671;

/// What RabbitMQ has for those who name nobody.
const GUEST: &str = "guest";

/// Where the nodes are and who we are there. No `Debug`: it holds a password.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) vhost: String,
    pub(crate) tls: bool,
}

impl Address {
    /// Reads scheme and what follows it, without options. Errors repeat nothing that may be a
    /// password.
    pub(crate) fn parse(scheme: &str, address: &str) -> Result<Self> {
        let tls = match scheme {
            "amqp" | "rabbitmq" => false,
            "amqps" | "rabbitmqs" => true,
            // It may be a host that was written without a scheme, so it is not repeated.
            _ => {
                return Err(refused(
                    "the scheme of the RabbitMQ URL is unknown",
                    "use amqp://, or amqps:// for TLS",
                ));
            }
        };
        let (who, place) = match address.rfind('@') {
            Some(at) => (&address[..at], &address[at + 1..]),
            None => ("", address),
        };
        let (user, password) = match who.split_once(':') {
            Some((user, password)) => (user, password),
            None if who.is_empty() => (GUEST, GUEST),
            None => {
                return Err(refused(
                    "the RabbitMQ URL has a user without a password",
                    "write it like amqp://user:password@host:5672/vhost",
                ));
            }
        };
        let (hosts, vhost) = place.split_once('/').unwrap_or((place, ""));
        if vhost.contains('/') {
            return Err(refused(
                "the path of the RabbitMQ URL has more than one part",
                "a `/` in the name of the virtual host is written %2F",
            ));
        }
        let port = if tls { TLS_PORT } else { PORT };
        Ok(Self {
            hosts: hosts.split(',').map(|text| host(text, port)).collect::<Result<_>>()?,
            user: decoded(user)?,
            password: decoded(password)?,
            // A virtual host without a name is possible and never meant.
            vhost: if vhost.is_empty() { "/".to_owned() } else { decoded(vhost)? },
            tls,
        })
    }

    /// The nodes for a message: never the user, never the password.
    pub(crate) fn shown(&self) -> String {
        let hosts: Vec<String> =
            self.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        hosts.join(",")
    }
}

fn decoded(text: &str) -> Result<String> {
    percent_decode_str(text).decode_utf8().map(|text| text.into_owned()).map_err(|_| {
        refused(
            "user, password or virtual host of the RabbitMQ URL are not UTF-8 once percent-decoded",
            "write `%` itself as %25",
        )
    })
}

fn host(text: &str, default: u16) -> Result<(String, u16)> {
    let malformed = || {
        refused(
            "a host of the RabbitMQ URL is missing or malformed",
            "write it like amqp://user:password@host:5672/vhost, and @ : / in a password as %40 %3A \
             %2F",
        )
    };
    host_and_port(text, default).ok_or_else(malformed)
}

fn refused(what: &'static str, remedy: &'static str) -> Error {
    Error::new(ErrorKind::Config, what).remedy(remedy).operation("connect")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_are_read() {
        let address = Address::parse("amqps", "app:p%40ss%2F@[::1]:7000,b/shop%2Fjobs").unwrap();
        assert_eq!(address.hosts, [("::1".to_owned(), 7000), ("b".to_owned(), 5671)]);
        assert_eq!((address.user.as_str(), address.password.as_str()), ("app", "p@ss/"));
        assert_eq!((address.vhost.as_str(), address.tls), ("shop/jobs", true));
        assert_eq!(address.shown(), "::1:7000,b:5671");

        for place in ["h", "h/", "h/%2f"] {
            let address = Address::parse("rabbitmq", place).unwrap();
            assert_eq!(address.hosts, [("h".to_owned(), 5672)]);
            assert_eq!((address.user.as_str(), address.password.as_str()), ("guest", "guest"));
            assert_eq!((address.vhost.as_str(), address.tls), ("/", false));
        }
        assert_eq!(Address::parse("amqp", "u:@h").unwrap().password, "");
    }

    #[test]
    fn wrong_addresses_are_refused_without_repeating_them() {
        for (scheme, address) in [
            ("amqp", ""),
            ("amqp", "u:hunter2@"),
            ("amqp", "hunter2@h"),
            ("amqp", "u:hunter2@h:port"),
            ("amqp", "u:hunter2@h:99999"),
            ("amqp", "u:hunter2@h,,i"),
            ("amqp", "u:hunter2@h/a/b"),
            ("amqp", "u:%FFhunter2@h"),
            ("http", "u:hunter2@h"),
            ("hunter2", "5672"),
        ] {
            let error = Address::parse(scheme, address).err().expect(address);
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.remedy_text().is_some() && !error.to_string().contains("hunter2"));
        }
    }
}
