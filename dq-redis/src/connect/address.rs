//! The address part of Redis URLs.
//!
//! `SCHEME://[user[:password]@]host[:port][,host[:port]…][/path]`, where the scheme is `redis` or
//! `rediss`, alone or with `+cluster`, `+sentinel` or `+unix`. The path is the database number;
//! with `+sentinel` the primary's name and then the number; with `+unix` the socket path, without a
//! host. User and password are percent-encoded.

use dq_core::config::{authority, host_and_port, invalid_setting};
use dq_core::{Error, Result};
use percent_encoding::percent_decode_str;

use crate::error::Origin;

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Topology {
    Single,
    Unix(String),
    Cluster,
    Sentinel(String),
}

/// No `Debug`, so that the password is not shown.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) topology: Topology,
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    pub(crate) tls: bool,
}

impl Address {
    /// Parses the parts of a URL before and after `://`.
    /// Errors: `Config` naming the part, without repeating it.
    pub(crate) fn parse(scheme: &str, address: &str) -> Result<Self> {
        let (family, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        if !["redis", "rediss"].contains(&family) {
            return Err(unknown_scheme());
        }
        let (login, location) = split_login(address, kind == "unix");
        let (user, password) = credentials(login)?;
        let (hosts, path) = location.split_once('/').unwrap_or((location, ""));
        let (topology, hosts, database) = match kind {
            "unix" => (Topology::Unix(socket(location)?), Vec::new(), 0),
            "" => (Topology::Single, vec![single_host(hosts)?], database(path)?),
            "cluster" if path.is_empty() => (Topology::Cluster, parse_hosts(hosts, PORT)?, 0),
            "cluster" => {
                return Err(invalid_setting(
                    "the URL of a Redis cluster ends in a path",
                    "a cluster has only one database: leave out what follows the hosts",
                ));
            }
            "sentinel" => {
                let (primary, number) = path.split_once('/').unwrap_or((path, ""));
                let topology = Topology::Sentinel(primary_name(primary)?);
                (topology, parse_hosts(hosts, SENTINEL_PORT)?, database(number)?)
            }
            _ => return Err(unknown_scheme()),
        };
        Ok(Self { topology, hosts, user, password, database, tls: family == "rediss" })
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.topology == Topology::Cluster
    }

    pub(crate) fn origin(&self) -> Origin {
        Origin {
            address: self.shown(),
            is_cluster: self.is_cluster(),
            finds_primary: matches!(self.topology, Topology::Cluster | Topology::Sentinel(_)),
            tls: self.tls,
        }
    }

    /// Leaves out user and password, for error and log messages.
    pub(crate) fn shown(&self) -> String {
        match &self.topology {
            Topology::Unix(path) => path.clone(),
            _ => {
                let hosts: Vec<String> =
                    self.hosts.iter().map(|(host, port)| authority(host, *port)).collect();
                hosts.join(",")
            }
        }
    }
}

/// A socket path may contain an `@`, too.
fn split_login(address: &str, is_socket: bool) -> (Option<&str>, &str) {
    let hosts_end = if is_socket { address.find('/') } else { None };
    match address[..hosts_end.unwrap_or(address.len())].rfind('@') {
        Some(end) => (Some(&address[..end]), &address[end + 1..]),
        None => (None, address),
    }
}

fn credentials(login: Option<&str>) -> Result<(Option<String>, Option<String>)> {
    let Some(login) = login else {
        return Ok((None, None));
    };
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (login, None),
    };
    let decode = |text: &str| {
        percent_decode_str(text).decode_utf8().map(|text| text.into_owned()).map_err(|_| {
            invalid_setting(
                "user or password of the Redis URL are not UTF-8 once percent-decoded",
                "write `%` itself as %25",
            )
        })
    };
    let user = if user.is_empty() { None } else { Some(decode(user)?) };
    Ok((user, password.map(decode).transpose()?))
}

fn socket(path: &str) -> Result<String> {
    if path.starts_with('/') {
        return Ok(path.to_owned());
    }
    // The path may be a part of a password with an unencoded `/`: the error does not repeat it.
    Err(invalid_setting(
        "the URL of a Redis socket does not name an absolute path",
        "write it like redis+unix://user:password@/run/redis.sock, and @ : / in a password as %40 \
         %3A %2F",
    ))
}

fn single_host(hosts: &str) -> Result<(String, u16)> {
    if hosts.contains(',') {
        return Err(invalid_setting(
            "the Redis URL names several hosts",
            "for a cluster begin it with redis+cluster://, for Sentinel with redis+sentinel://",
        ));
    }
    parse_host(hosts, PORT)
}

fn parse_hosts(hosts: &str, default_port: u16) -> Result<Vec<(String, u16)>> {
    hosts.split(',').map(|host| parse_host(host, default_port)).collect()
}

fn parse_host(host: &str, default_port: u16) -> Result<(String, u16)> {
    host_and_port(host, default_port).ok_or_else(|| {
        invalid_setting(
            "a host of the Redis URL is missing or malformed",
            "write it like redis://user:password@host:6379/0, and @ : / in a password as %40 %3A %2F",
        )
    })
}

fn primary_name(name: &str) -> Result<String> {
    if name.is_empty() {
        return Err(invalid_setting(
            "the Sentinel URL does not name the primary",
            "write it like redis+sentinel://host:26379/mymaster/0",
        ));
    }
    Ok(name.to_owned())
}

fn database(text: &str) -> Result<i64> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse::<u16>().map(i64::from).map_err(|_| {
        invalid_setting(
            "the path of the Redis URL is not the number of a database",
            "write it like redis://host:6379/0",
        )
    })
}

/// The error does not repeat the scheme, which may be part of an address without one.
fn unknown_scheme() -> Error {
    invalid_setting(
        "the scheme of the Redis URL is unknown",
        "use redis://, rediss:// (TLS), redis+unix://, redis+cluster:// or redis+sentinel://",
    )
}

#[cfg(test)]
mod tests {
    use dq_core::ErrorKind;

    use super::*;

    #[test]
    fn addresses_of_every_topology_are_parsed() {
        let address = Address::parse("rediss", "app:p%40ss@[::1]:7000/3").unwrap();
        assert_eq!(address.hosts, [("::1".to_owned(), 7000)]);
        assert_eq!(address.shown(), "[::1]:7000");
        assert_eq!(address.user.as_deref(), Some("app"));
        assert_eq!(address.password.as_deref(), Some("p@ss"));
        assert_eq!((address.database, address.tls), (3, true));

        let address = Address::parse("redis+sentinel", ":x@a,b:1/main").unwrap();
        assert_eq!(address.hosts, [("a".to_owned(), 26379), ("b".to_owned(), 1)]);
        assert!(address.topology == Topology::Sentinel("main".to_owned()));
        assert_eq!((address.user, address.password.as_deref()), (None, Some("x")));

        assert!(Address::parse("redis+cluster", "a,b").unwrap().topology == Topology::Cluster);
        let unix = Address::parse("redis+unix", "/run/redis.sock").unwrap();
        assert!(unix.topology == Topology::Unix("/run/redis.sock".to_owned()));
        let unix = Address::parse("redis+unix", "u:p@/run/a@b.sock").unwrap();
        assert!(unix.topology == Topology::Unix("/run/a@b.sock".to_owned()));
        assert_eq!(unix.password.as_deref(), Some("p"));
    }

    #[test]
    fn malformed_addresses_are_refused_without_repeating_them() {
        for (scheme, address) in [
            ("redis", "u:hunter2@"),
            ("redis", "u:hunter2@host/x"),
            ("redis", "u:hunter2@a,b"),
            ("redis", "u:hunter2@host:99999"),
            ("redis+cluster", "u:hunter2@host/1"),
            ("redis+sentinel", "u:hunter2@host"),
            ("redis+pool", "u:hunter2@host"),
            ("redisson", "u:hunter2@host"),
            ("hunter2", "7462"),
            ("redis", "u:%FFhunter2@host"),
            ("redis+unix", "u:hun/hunter2@/run/redis.sock"),
        ] {
            let Err(error) = Address::parse(scheme, address) else {
                panic!("{scheme}://{address}")
            };
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.remedy_text().is_some() && !error.to_string().contains("hunter2"));
        }
    }
}
