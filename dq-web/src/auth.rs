//! Authentication: who makes a request.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use axum::http::header::{AUTHORIZATION, HOST};
use axum::http::{HeaderMap, HeaderName};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use dq_core::{Entropy, Error, Result};
use dq_ops::{Actor, Role};
use futures_util::future::BoxFuture;
use subtle::ConstantTimeEq;

/// Shortest token, in bytes.
const MIN_TOKEN: usize = 16;

/// Shortest password, in bytes.
const MIN_PASSWORD: usize = 8;

/// Authenticates the requests to a router. Every router needs one.
///
/// Programs send a token as `Authorization: Bearer`. Browsers send it as the HTTP Basic password,
/// with any user name. The server sets no cookies.
#[derive(Clone)]
pub struct Auth(Kind);

#[derive(Clone)]
enum Kind {
    Tokens(Vec<(String, Actor)>),
    Basic(Vec<(String, Actor)>),
    TrustedHeader(HeaderName, Arc<RoleOf>),
    Custom(Arc<Custom>),
    Loopback(String),
}

type RoleOf = dyn Fn(&str) -> Option<Role> + Send + Sync;

type Custom = dyn Fn(HeaderMap) -> BoxFuture<'static, Option<Actor>> + Send + Sync;

impl Auth {
    /// Accepts a token as this actor. Add more with [`Self::and_token`].
    ///
    /// # Errors
    /// `InvalidInput` if the token is shorter than 16 bytes, is not printable ASCII, or has white
    /// space around it.
    pub fn token(actor: Actor, token: impl Into<String>) -> Result<Self> {
        Ok(Self(Kind::Tokens(vec![(checked_token(token.into())?, actor)])))
    }

    /// Accepts another token as this actor.
    ///
    /// # Errors
    /// As [`Self::token`]; also if `self` does not use tokens.
    pub fn and_token(mut self, actor: Actor, token: impl Into<String>) -> Result<Self> {
        let Kind::Tokens(tokens) = &mut self.0 else {
            return Err(Error::invalid("a token is added to another kind of authentication")
                .remedy("begin with `Auth::token`"));
        };
        tokens.push((checked_token(token.into())?, actor));
        Ok(self)
    }

    /// Accepts users with passwords (HTTP Basic). Use it only over HTTPS, or behind a proxy that
    /// adds it.
    ///
    /// # Errors
    /// `InvalidInput` if the list is empty, a name is empty or contains a colon, or a password is
    /// shorter than 8 bytes.
    pub fn basic(users: impl IntoIterator<Item = (Actor, String)>) -> Result<Self> {
        let mut checked_users = Vec::new();
        for (actor, password) in users {
            if actor.name().is_empty() || actor.name().contains(':') {
                return Err(Error::invalid(format!("{:?} is not a user name", actor.name()))
                    .remedy("a user name is not empty and has no colon"));
            }
            checked_users.push((checked("password", password, MIN_PASSWORD)?, actor));
        }
        if checked_users.is_empty() {
            return Err(Error::invalid("there is no user").remedy("list at least one"));
        }
        Ok(Self(Kind::Basic(checked_users)))
    }

    /// Takes the user name from a proxy's header, and the role from `role_of`.
    ///
    /// The request is refused if `role_of` returns `None`. Your proxy must remove this header from
    /// client requests, and nobody may reach the server without passing the proxy.
    ///
    /// # Errors
    /// `InvalidInput` if the header name is invalid.
    pub fn trusted_header(
        header: &str,
        role_of: impl Fn(&str) -> Option<Role> + Send + Sync + 'static,
    ) -> Result<Self> {
        let name = HeaderName::try_from(header).map_err(|_| {
            Error::invalid(format!("{header:?} is not the name of a header"))
                .remedy("write it like X-Forwarded-User")
        })?;
        Ok(Self(Kind::TrustedHeader(name, Arc::new(role_of))))
    }

    /// Calls your function with each request's headers; `None` refuses the request.
    ///
    /// ```
    /// use dq_ops::{Actor, Role};
    /// use dq_web::Auth;
    ///
    /// let auth = Auth::custom(|headers| async move {
    ///     let session = headers.get("x-session")?.to_str().ok()?.to_owned();
    ///     // Look the session up in a store of your own.
    ///     (session == "of ann").then(|| Actor::new("ann", Role::Reader))
    /// });
    /// ```
    pub fn custom<F, Fut>(authenticate: F) -> Self
    where
        F: Fn(HeaderMap) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<Actor>> + Send + 'static,
    {
        Self(Kind::Custom(Arc::new(move |headers| Box::pin(authenticate(headers)))))
    }

    /// Accepts a newly generated admin token, for one person on this machine.
    ///
    /// Show that person [`Self::generated_token`]. Only requests to a loopback host name are
    /// accepted, so that no web site can reach the server through the browser with its own DNS
    /// name.
    #[must_use]
    pub fn loopback() -> Self {
        let entropy = Entropy::from_os();
        loop {
            let token = URL_SAFE_NO_PAD.encode(entropy.bits().to_be_bytes());
            // On a command line, it looks like an option.
            if !token.starts_with('-') {
                return Self(Kind::Loopback(token));
            }
        }
    }

    /// Returns the token of [`Self::loopback`]; `None` for other kinds.
    #[must_use]
    pub fn generated_token(&self) -> Option<&str> {
        match &self.0 {
            Kind::Loopback(token) => Some(token),
            _ => None,
        }
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self.0, Kind::Loopback(_))
    }

    /// Whether a browser can ask the user for credentials.
    pub(crate) fn asks(&self) -> bool {
        matches!(self.0, Kind::Tokens(_) | Kind::Basic(_) | Kind::Loopback(_))
    }

    /// Returns the request's host if the loopback token is right but the host is not this machine.
    pub(crate) fn refused_host<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let Kind::Loopback(secret) = &self.0 else { return None };
        let host = host_of(headers);
        (is_equal(secret, &token_of(headers)?) && !is_loopback(host)).then_some(host)
    }

    pub(crate) async fn authenticate(&self, headers: &HeaderMap) -> Option<Actor> {
        match &self.0 {
            Kind::Tokens(tokens) => {
                let token = token_of(headers)?;
                find(tokens, |_, secret| is_equal(secret, &token))
            }
            Kind::Basic(users) => {
                let (user, password) = basic_of(headers)?;
                find(users, |actor, secret| {
                    is_equal(actor.name(), &user) & is_equal(secret, &password)
                })
            }
            Kind::TrustedHeader(header, role_of) => {
                let mut values = headers.get_all(header).iter();
                let name = values.next()?.to_str().ok()?.trim();
                // A second value may come from the client.
                if name.is_empty() || values.next().is_some() {
                    return None;
                }
                Some(Actor::new(name, role_of(name)?))
            }
            Kind::Custom(authenticate) => authenticate(headers.clone()).await,
            Kind::Loopback(secret) => {
                let is_local = is_loopback(host_of(headers));
                let is_known = is_equal(secret, &token_of(headers)?) && is_local;
                is_known.then(|| Actor::new("local", Role::Admin))
            }
        }
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Tokens(_) => "Auth::token",
            Kind::Basic(_) => "Auth::basic",
            Kind::TrustedHeader(..) => "Auth::trusted_header",
            Kind::Custom(_) => "Auth::custom",
            Kind::Loopback(_) => "Auth::loopback",
        })
    }
}

/// Checks that `Bearer` can carry the token: printable ASCII without white space around it.
fn checked_token(token: String) -> Result<String> {
    let is_readable = |byte: u8| (b' '..=b'~').contains(&byte);
    if token.trim() != token || !token.bytes().all(is_readable) {
        return Err(Error::invalid(
            "a token has characters that the header of a request cannot carry",
        )
        .remedy("use ASCII without white space around it; does a file end with a line break?"));
    }
    checked("token", token, MIN_TOKEN)
}

fn checked(what: &str, secret: String, min: usize) -> Result<String> {
    if secret.len() >= min {
        return Ok(secret);
    }
    Err(Error::invalid(format!("a {what} has {} bytes", secret.len()))
        .remedy(format!("choose one of at least {min}")))
}

/// Finds the actor. Compares with every secret, so that the duration reveals nothing.
fn find(secrets: &[(String, Actor)], matches: impl Fn(&Actor, &str) -> bool) -> Option<Actor> {
    let matching = secrets.iter().filter(|(secret, actor)| matches(actor, secret));
    matching.fold(None, |found, (_, actor)| found.or_else(|| Some(actor.clone())))
}

/// Compares in constant time.
fn is_equal(a: &str, b: &str) -> bool {
    a.as_bytes().ct_eq(b.as_bytes()).into()
}

/// Returns the token of a request: as `Bearer`, or as the password of `Basic`.
fn token_of(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    match value.split_once(' ')? {
        (scheme, token) if scheme.eq_ignore_ascii_case("bearer") => Some(token.trim().to_owned()),
        _ => basic_of(headers).map(|(_, password)| password),
    }
}

fn basic_of(headers: &HeaderMap) -> Option<(String, String)> {
    let (scheme, encoded) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

fn host_of(headers: &HeaderMap) -> &str {
    headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default()
}

/// Whether a host, with or without a port, is this machine.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let header = |&(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), value.parse().unwrap())
        };
        pairs.iter().map(header).collect()
    }

    async fn actor_of(auth: &Auth, authorization: &str) -> Option<Actor> {
        auth.authenticate(&headers(&[("authorization", authorization)])).await
    }

    fn basic(user: &str, password: &str) -> String {
        format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
    }

    #[tokio::test]
    async fn tokens_come_as_bearer_or_as_the_password_of_basic() {
        let (ann, bob) = (Actor::new("ann", Role::Viewer), Actor::new("bob", Role::Admin));
        let auth = Auth::token(ann.clone(), "0123456789abcdef").unwrap();
        let auth = auth.and_token(bob.clone(), "fedcba9876543210").unwrap();
        assert_eq!(actor_of(&auth, "Bearer 0123456789abcdef").await, Some(ann));
        assert_eq!(actor_of(&auth, &basic("x", "fedcba9876543210")).await, Some(bob));
        for wrong in ["", "Bearer", "Bearer ", "Bearer 0123456789abcde", "Basic ====", "bearer"] {
            assert_eq!(actor_of(&auth, wrong).await, None, "{wrong:?}");
        }
        assert_eq!(auth.authenticate(&HeaderMap::new()).await, None);
        for wrong in ["", "0123456789abcdef\n", " 0123456789abcdef", "0123456789abcdeü"] {
            assert!(Auth::token(Actor::new("ann", Role::Viewer), wrong).is_err(), "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn a_password_belongs_to_its_user() {
        let users = ["ann", "bob"]
            .map(|name| (Actor::new(name, Role::Reader), format!("password of {name}")));
        let auth = Auth::basic(users).unwrap();
        let ann = actor_of(&auth, &basic("ann", "password of ann")).await;
        assert_eq!(ann.unwrap().name(), "ann");
        assert_eq!(actor_of(&auth, &basic("ann", "password of bob")).await, None);
        assert!(Auth::basic([]).is_err());
        assert!(Auth::basic([(Actor::new("a:b", Role::Admin), "long enough".to_owned())]).is_err());
    }

    #[tokio::test]
    async fn a_trusted_header_has_one_value_and_a_role() {
        let role_of = |name: &str| (name == "ann").then_some(Role::Operator);
        let auth = Auth::trusted_header("x-user", role_of).unwrap();
        let found = auth.authenticate(&headers(&[("x-user", "ann")])).await;
        assert_eq!(found, Some(Actor::new("ann", Role::Operator)));
        for wrong in [vec![("x-user", "eve")], vec![], vec![("x-user", "ann"), ("x-user", "eve")]] {
            assert_eq!(auth.authenticate(&headers(&wrong)).await, None, "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn the_loopback_token_works_for_loopback_hosts_only() {
        let auth = Auth::loopback();
        let token = format!("Bearer {}", auth.generated_token().unwrap());
        for (host, allowed) in [
            ("127.0.0.1:8080", true),
            ("localhost", true),
            ("[::1]:80", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example:80", false),
        ] {
            let headers = headers(&[("authorization", &token), ("host", host)]);
            let found = auth.authenticate(&headers).await;
            assert_eq!(found.is_some(), allowed, "{host}");
            let refused = auth.refused_host(&headers);
            assert_eq!(refused, (!allowed).then_some(host));
        }
        assert_ne!(auth.generated_token(), Auth::loopback().generated_token());
    }
}
