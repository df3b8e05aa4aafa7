//! Standard Webhooks signatures: HMAC-SHA256 over `id.timestamp.body`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dq_core::Result;
use dq_core::config::Secret;
use ring::hmac;

use crate::error::invalid_setting;

const PREFIX: &str = "whsec_";
/// How long a key may be.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

pub(super) struct Signer {
    keys: Vec<hmac::Key>,
}

impl Signer {
    /// Decodes the keys; `Config` for a malformed or weak one, without printing it.
    pub(super) fn new(secrets: &[Secret]) -> Result<Self> {
        Ok(Self { keys: secrets.iter().map(key).collect::<Result<_>>()? })
    }

    /// Returns the header `webhook-signature`, with one signature per key; `None` without keys.
    pub(super) fn sign(&self, id: &str, unix_seconds: i64, body: &[u8]) -> Option<String> {
        let signature = |key: &hmac::Key| {
            let mut context = hmac::Context::with_key(key);
            context.update(format!("{id}.{unix_seconds}.").as_bytes());
            context.update(body);
            format!("v1,{}", STANDARD.encode(context.sign()))
        };
        let signatures: Vec<_> = self.keys.iter().map(signature).collect();
        (!signatures.is_empty()).then(|| signatures.join(" "))
    }
}

fn key(secret: &Secret) -> Result<hmac::Key> {
    let text = secret.expose();
    match STANDARD.decode(text.strip_prefix(PREFIX).unwrap_or(text)) {
        Ok(bytes) if KEY_BYTES.contains(&bytes.len()) => {
            Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
        }
        _ => Err(invalid_setting(
            "`secrets` has a key that is not Base64 of 24 to 64 bytes",
            "generate one by `echo whsec_$(openssl rand -base64 32)`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weak_and_malformed_keys_are_refused_without_repeating_them() {
        for wrong in ["", "whsec_", "hunter2", "whsec_aHVudGVyMg==", "whsec_$$$$"] {
            let error = Signer::new(&[Secret::new(wrong)]).err().unwrap().to_string();
            assert!(error.contains("24 to 64") && !error.contains("hunter2"), "{error}");
        }
        assert!(Signer::new(&[]).unwrap().sign("id", 1, b"").is_none());
    }
}
