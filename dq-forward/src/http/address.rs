//! Limits requests to public addresses and the ones in the settings.
//!
//! A customer's webhook URL may resolve to any address. Unchecked, a request could reach services
//! that trust the local network, such as a cloud's metadata service.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use dq_core::{BoxError, Result};
use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolving};

use crate::error::invalid_setting;

/// A host name resolver.
#[async_trait]
pub trait Resolve: fmt::Debug + Send + Sync + 'static {
    /// Resolves a host name.
    ///
    /// Called once per request, unless the URL has an address.
    ///
    /// # Errors
    /// Any error; the request fails and is retried.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

#[derive(Debug)]
pub(super) struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect())
    }
}

/// Resolves names to permitted addresses only. The HTTP client connects to these addresses without
/// resolving the name again, perhaps to another address.
#[derive(Clone)]
pub(super) struct PermittedAddresses {
    pub(super) policy: Arc<AddressPolicy>,
    pub(super) resolver: Arc<dyn Resolve>,
}

impl PermittedAddresses {
    async fn resolve_permitted(&self, host: &str) -> Result<Addrs, BoxError> {
        let resolved = self.resolver.resolve(host).await;
        let resolved = resolved.map_err(|error| format!("{host} does not resolve: {error}"))?;
        let (permitted, refused): (Vec<_>, Vec<_>) =
            resolved.into_iter().partition(|address| self.policy.permits(*address));
        if !permitted.is_empty() {
            // The client inserts the URL's port.
            return Ok(Box::new(permitted.into_iter().map(|address| SocketAddr::new(address, 0))));
        }
        if refused.is_empty() {
            return Err(format!("{host} has no address").into());
        }
        let refused: Vec<_> = refused.iter().map(IpAddr::to_string).collect();
        let refused = refused.join(", ");
        Err(format!(
            "{host} has no public address, but {refused}; if requests should go there, add it to \
             `allow`"
        )
        .into())
    }
}

impl reqwest::dns::Resolve for PermittedAddresses {
    fn resolve(&self, name: Name) -> Resolving {
        let addresses = self.clone();
        Box::pin(async move { addresses.resolve_permitted(name.as_str()).await })
    }
}

#[derive(Debug)]
pub(super) struct AddressPolicy {
    /// Networks from the settings. All public addresses are permitted, too.
    allowed: Vec<IpNet>,
}

impl AddressPolicy {
    pub(super) fn new(allowed: &[String]) -> Result<Self> {
        let network = |text: &String| {
            parse_network(text).ok_or_else(|| {
                invalid_setting(
                    format!("`allow` has {text:?}, which is no address and no network"),
                    "write it like 10.1.0.0/16, 192.168.7.9 or fd00::/8",
                )
            })
        };
        Ok(Self { allowed: allowed.iter().map(network).collect::<Result<_>>()? })
    }

    /// Rejects a URL's host as `Config`: a forbidden address, or a name of this computer if none of
    /// its addresses is allowed. Names are resolved later; this is the only check of an address.
    pub(super) fn check_host(&self, host: &str) -> Result<()> {
        // A URL writes IPv6 addresses in brackets.
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        let (what, addresses) = if let Ok(address) = address {
            (format!("the address {address}"), vec![address])
        } else if is_local_name(host) {
            let addresses = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            (format!("the host {host}"), addresses)
        } else {
            return Ok(());
        };
        if addresses.iter().any(|address| self.permits(*address)) {
            return Ok(());
        }
        Err(invalid_setting(
            format!("`url` has {what}, which is not public"),
            format!("if requests should go there, write `allow = [\"{}\"]`", addresses[0]),
        ))
    }

    fn permits(&self, address: IpAddr) -> bool {
        // An IPv4-mapped IPv6 address reaches the IPv4 address.
        let address = address.to_canonical();
        self.allowed.iter().any(|network| network.contains(&address)) || is_public(address)
    }
}

fn parse_network(text: &str) -> Option<IpNet> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(IpNet::from(address.to_canonical()));
    }
    let network: IpNet = text.parse().ok()?;
    // An IPv4-mapped network would match nothing, because checked addresses are canonical.
    (network.addr().to_canonical() == network.addr()).then_some(network)
}

/// Whether a name means this computer, however it is resolved (RFC 6761).
fn is_local_name(host: &str) -> bool {
    let host = host.trim_end_matches('.');
    host == "localhost" || host.ends_with(".localhost")
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        // This network, multicast, reserved and broadcast.
        || a == 0
        || a >= 224
        // Carrier-grade NAT.
        || (a == 100 && (64..128).contains(&b))
        // Protocol assignments, and the former 6to4 relays.
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        // Benchmarks.
        || (a == 198 && (b == 18 || b == 19));
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let embedded = |high: u16, low: u16| {
        is_public_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
    };
    match segments {
        // NAT64 and 6to4 lead to an IPv4 address.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x2002, high, low, ..] => embedded(high, low),
        // Teredo, ORCHID, benchmarks, other protocol assignments, documentation.
        [0x2001, second, ..] => second >= 0x200 && second != 0xdb8,
        [0x3fff, second, ..] => second >= 0x1000,
        // Global unicast. Everything else is local, multicast or reserved.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allowed: &[&str]) -> AddressPolicy {
        let allowed: Vec<String> = allowed.iter().map(|text| (*text).to_owned()).collect();
        AddressPolicy::new(&allowed).unwrap()
    }

    fn permits(allowed: &[&str], address: &str) -> bool {
        policy(allowed).permits(address.parse().unwrap())
    }

    #[test]
    fn only_public_addresses_are_permitted() {
        let special = "
            0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254
            169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.8 192.0.2.1 192.88.99.1 192.168.1.1
            198.18.0.1 198.51.100.7 203.0.113.9 224.0.0.1 240.0.0.1 255.255.255.255
            :: ::1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::127.0.0.1 64:ff9b::7f00:1
            64:ff9b::a9fe:a9fe 64:ff9b:1::1 100::1 2001::1 2001:db8::1 2002:7f00:1::
            2002:a9fe:a9fe::1 3fff::1 fc00::1 fd12:3456::1 fe80::1 fec0::1 ff02::1 5f00::1";
        for address in special.split_whitespace() {
            assert!(!permits(&[], address), "{address}");
        }
        let public = "
            1.1.1.1 8.8.8.8 100.63.0.1 100.128.0.1 172.15.0.1 172.32.0.1 192.0.1.1 198.20.0.1
            223.255.255.255 2606:4700::1111 2a00::1 64:ff9b::808:808 2002:808:808::1
            ::ffff:8.8.8.8 2001:4860:4860::8888";
        for address in public.split_whitespace() {
            assert!(permits(&[], address), "{address}");
        }
    }

    #[test]
    fn a_host_that_cannot_be_reached_is_refused_with_what_to_allow() {
        for (host, allow) in [
            ("localhost", "127.0.0.1"),
            ("localhost.", "127.0.0.1"),
            ("app.localhost", "127.0.0.1"),
            ("127.0.0.1", "127.0.0.1"),
            ("10.1.2.3", "10.1.2.3"),
            ("[::1]", "::1"),
        ] {
            let error = policy(&["192.168.0.0/16"]).check_host(host).unwrap_err();
            let name = host.trim_matches(['[', ']']);
            assert!(error.to_string().contains(name), "{error}");
            let remedy = error.remedy_text().unwrap();
            assert!(remedy.ends_with(&format!("`allow = [\"{allow}\"]`")), "{remedy}");
            assert!(policy(&[allow]).check_host(host).is_ok(), "{host}");
        }
        assert!(policy(&["::1"]).check_host("localhost").is_ok());
        for host in ["example.com", "localhost.example.com", "notlocalhost", "8.8.8.8"] {
            assert!(policy(&[]).check_host(host).is_ok(), "{host}");
        }
    }

    #[test]
    fn networks_of_the_settings_are_permitted() {
        for (network, inside, outside) in [
            ("10.1.0.0/16", "10.1.255.1", "10.2.0.1"),
            ("10.1.0.0/16", "::ffff:10.1.0.1", "::ffff:10.2.0.1"),
            ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
            ("::ffff:127.0.0.1", "127.0.0.1", "127.0.0.2"),
            ("fd00::/8", "fd12::1", "fe80::1"),
            ("0.0.0.0/0", "127.0.0.1", "::1"),
            ("::/0", "::1", "127.0.0.1"),
        ] {
            assert!(permits(&[network], inside), "{network}: {inside}");
            assert!(!permits(&[network], outside), "{network}: {outside}");
        }
        for wrong in [
            "",
            "10.1.0.0/33",
            "::/129",
            "10.1/16",
            "localhost",
            "10.0.0.1/-1",
            "::ffff:10.1.0.0/112",
        ] {
            let error = AddressPolicy::new(&[wrong.to_owned()]).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }
}
