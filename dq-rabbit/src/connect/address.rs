//! The address in a URL: `SCHEME://[user:password@]host[:port][,host[:port]…][/vhost]`. User,
//! password and virtual host are percent-encoded.

use dq_core::Result;
use dq_core::config::{authority, host_and_port, invalid_setting};
use percent_encoding::percent_decode_str;

const PORT: u16 = 5672;
const TLS_PORT: u16 = 5671;

const GUEST: &str = "guest";

/// A parsed address. It has no `Debug`, because it holds a password.
#[derive(Clone)]
pub(super) struct BrokerAddress {
    pub(super) hosts: Vec<(String, u16)>,
    pub(super) user: String,
    pub(super) password: String,
    pub(super) vhost: String,
    pub(super) tls: bool,
}

impl BrokerAddress {
    /// Parses an address without options. Errors do not repeat text that may be a password.
    ///
    /// # Errors
    /// `Config` if the scheme is unknown or the address malformed.
    pub(super) fn parse(scheme: &str, address: &str) -> Result<Self> {
        let tls = match scheme {
            "amqp" | "rabbitmq" => false,
            "amqps" | "rabbitmqs" => true,
            // Not repeated: without `//`, it may be a host or part of a password.
            _ => {
                return Err(invalid_setting(
                    "the scheme of the RabbitMQ URL is unknown",
                    "use amqp://, or amqps:// for TLS",
                ));
            }
        };
        let (login, location) = match address.rfind('@') {
            Some(at) => (&address[..at], &address[at + 1..]),
            None => ("", address),
        };
        if login.contains('/') {
            // The `@` may belong to the virtual host. The password must not go to another host.
            return Err(invalid_setting(
                "the RabbitMQ URL has an `@` after a `/`",
                "encode @ : / in user, password and virtual host as %40 %3A %2F",
            ));
        }
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, password),
            None if login.is_empty() => (GUEST, GUEST),
            None => {
                return Err(invalid_setting(
                    "the RabbitMQ URL has a user without a password",
                    "write it like amqp://user:password@host:5672/vhost",
                ));
            }
        };
        let (hosts, vhost) = location.split_once('/').unwrap_or((location, ""));
        if vhost.contains('/') {
            return Err(invalid_setting(
                "the path of the RabbitMQ URL has more than one segment",
                "encode a `/` in the name of the virtual host as %2F",
            ));
        }
        let port = if tls { TLS_PORT } else { PORT };
        Ok(Self {
            hosts: hosts.split(',').map(|text| parse_host(text, port)).collect::<Result<_>>()?,
            user: percent_decode(user)?,
            password: percent_decode(password)?,
            // RabbitMQ allows an empty name, but a URL that ends in `/` means the default virtual
            // host.
            vhost: if vhost.is_empty() { "/".to_owned() } else { percent_decode(vhost)? },
            tls,
        })
    }

    pub(super) fn display(&self) -> String {
        let hosts: Vec<String> =
            self.hosts.iter().map(|(host, port)| authority(host, *port)).collect();
        hosts.join(",")
    }
}

fn percent_decode(text: &str) -> Result<String> {
    percent_decode_str(text).decode_utf8().map(|text| text.into_owned()).map_err(|_| {
        invalid_setting(
            "user, password or virtual host of the RabbitMQ URL are not UTF-8 once percent-decoded",
            "encode `%` itself as %25",
        )
    })
}

fn parse_host(text: &str, default: u16) -> Result<(String, u16)> {
    let malformed = || {
        invalid_setting(
            "a host of the RabbitMQ URL is missing or malformed",
            "write it like amqp://user:password@host:5672/vhost, and @ : / in a password as %40 %3A \
             %2F",
        )
    };
    host_and_port(text, default).ok_or_else(malformed)
}

#[cfg(test)]
mod tests {
    use dq_core::ErrorKind;

    use super::*;

    #[test]
    fn all_forms_are_parsed() {
        let address =
            BrokerAddress::parse("amqps", "app:p%40ss%2F@[::1]:7000,b/shop%2Fjobs").unwrap();
        assert_eq!(address.hosts, [("::1".to_owned(), 7000), ("b".to_owned(), 5671)]);
        assert_eq!((address.user.as_str(), address.password.as_str()), ("app", "p@ss/"));
        assert_eq!((address.vhost.as_str(), address.tls), ("shop/jobs", true));
        assert_eq!(address.display(), "[::1]:7000,b:5671");

        for location in ["h", "h/", "h/%2f"] {
            let BrokerAddress { hosts, user, password, vhost, tls } =
                BrokerAddress::parse("rabbitmq", location).unwrap();
            assert_eq!((&*hosts, tls), (&[("h".to_owned(), 5672)][..], false));
            assert_eq!([user, password, vhost], ["guest", "guest", "/"]);
        }
        assert_eq!(BrokerAddress::parse("amqp", "u:@h").unwrap().password, "");
    }

    #[test]
    fn invalid_addresses_are_rejected_without_repeating_them() {
        for (scheme, address) in [
            ("amqp", ""),
            ("amqp", "u:hunter2@"),
            ("amqp", "hunter2@h"),
            ("amqp", "u:hunter2@h:port"),
            ("amqp", "u:hunter2@h:99999"),
            ("amqp", "u:hunter2@h,,i"),
            ("amqp", "u:hunter2@h/a/b"),
            ("amqp", "u:hunter2@h/tenant@eu"),
            ("amqp", "u:%FFhunter2@h"),
            ("http", "u:hunter2@h"),
            ("hunter2", "5672"),
        ] {
            let error = BrokerAddress::parse(scheme, address).err().expect(address);
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.remedy_text().is_some() && !error.to_string().contains("hunter2"));
        }
    }
}
