//! Leases of workers as signed texts, and the server that gives them out.

use std::fmt;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dq_core::{Dq, Entropy, Error, Observer, PullLease, PullServer};
use ring::hmac;

use crate::error::Result;

/// The server for workers, made when it is first used, and the key of its leases.
#[derive(Clone)]
pub(crate) struct Work {
    server: Arc<OnceLock<PullServer>>,
    key: Arc<hmac::Key>,
    pub(crate) observers: Vec<Arc<dyn Observer>>,
}

impl Work {
    pub(crate) fn set_secret(&mut self, secret: &[u8]) {
        // Another use of the same secret has another key.
        let master = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let key = hmac::sign(&master, b"dq leases");
        self.key = Arc::new(hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()));
    }

    pub(crate) fn server(&self, dq: &Dq) -> &PullServer {
        self.server.get_or_init(|| PullServer::observed(dq, self.observers.clone()))
    }

    /// Returns the server if it has been used.
    pub(crate) fn used_server(&self) -> Option<&PullServer> {
        self.server.get()
    }

    /// Writes a lease as a signed text, for this owner.
    pub(crate) fn sign(&self, owner: &str, lease: &PullLease) -> String {
        let body = serde_json::to_vec(&(owner, lease)).unwrap_or_default();
        let tag = hmac::sign(&self.key, &body);
        format!("{}.{}", URL_SAFE_NO_PAD.encode(&body), URL_SAFE_NO_PAD.encode(tag))
    }

    pub(crate) fn read(&self, owner: &str, text: &str) -> Result<PullLease> {
        let read = || {
            let (body, tag) = text.split_once('.')?;
            let body = URL_SAFE_NO_PAD.decode(body).ok()?;
            hmac::verify(&self.key, &body, &URL_SAFE_NO_PAD.decode(tag).ok()?).ok()?;
            serde_json::from_slice::<(String, PullLease)>(&body).ok()
        };
        let Some((given_to, lease)) = read() else {
            return Err(Error::invalid("the lease is not from this server").remedy(
                "send a job's `lease` as the claim returned it; if the server's secret or tokens \
                 have changed, the job runs again when its lease expires",
            )
            .into());
        };
        if given_to != owner {
            return Err(Error::invalid("the lease belongs to another token")
                .remedy("use the token of the claim")
                .into());
        }
        Ok(lease)
    }
}

impl Default for Work {
    fn default() -> Self {
        let entropy = Entropy::from_os();
        let secret = [entropy.bits(), entropy.bits()].map(u128::to_be_bytes).concat();
        let key = Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &secret));
        Self { server: Arc::default(), key, observers: Vec::new() }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").finish_non_exhaustive()
    }
}
