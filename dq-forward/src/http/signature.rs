//! Standard Webhooks signatures: HMAC-SHA256 over `id.timestamp.body`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dq_core::Result;
use dq_core::config::Secret;
use ring::hmac;

use crate::error::invalid_setting;

const PREFIX: &str = "whsec_";

pub(super) struct Signer {
    keys: Vec<hmac::Key>,
}

impl Signer {
    pub(super) fn new(secrets: &[Secret]) -> Result<Self> {
        let key = |secret: &Secret| {
            let text = secret.expose();
            let key = STANDARD.decode(text.strip_prefix(PREFIX).unwrap_or(text)).ok();
            key.filter(|key| (24..=64).contains(&key.len())).ok_or_else(|| {
                invalid_setting(
                    "`secrets` has a key that is not Base64 of 24 to 64 bytes",
                    "generate one by `echo whsec_$(openssl rand -base64 32)`",
                )
            })
        };
        let keys =
            secrets.iter().map(|secret| Ok(hmac::Key::new(hmac::HMAC_SHA256, &key(secret)?)));
        Ok(Self { keys: keys.collect::<Result<_>>()? })
    }

    /// Returns the header `webhook-signature`, with one signature per key; `None` without keys.
    /// Pass the values of `webhook-id` and `webhook-timestamp`.
    pub(super) fn sign(&self, id: &str, unix_seconds: i64, body: &[u8]) -> Option<String> {
        let signatures = self.keys.iter().map(|key| {
            let mut context = hmac::Context::with_key(key);
            context.update(format!("{id}.{unix_seconds}.").as_bytes());
            context.update(body);
            format!("v1,{}", STANDARD.encode(context.sign()))
        });
        let signatures: Vec<_> = signatures.collect();
        (!signatures.is_empty()).then(|| signatures.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_specification_is_signed_alike() {
        let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let signer = Signer::new(&[secret]).unwrap();
        let signature =
            signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b"{\"test\": 2432232314}");
        assert_eq!(signature.unwrap(), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn weak_and_malformed_keys_are_refused_without_repeating_them() {
        for wrong in ["", "whsec_", "hunter2", "whsec_aHVudGVyMg==", "whsec_$$$$"] {
            let error = Signer::new(&[Secret::new(wrong)]).err().unwrap().to_string();
            assert!(error.contains("24 to 64") && !error.contains("hunter2"), "{error}");
        }
        assert!(Signer::new(&[]).unwrap().sign("id", 1, b"").is_none());
    }
}
