//! Text that must not appear in logs and errors.

use std::fmt;

use serde::{Deserialize, Deserializer, de};

/// A password, or a URL with one. `Debug` prints `***`.
///
/// In a configuration file, a numeric password needs quotes only if a number would lose characters,
/// as in `1.50`. In an environment variable for a store, a server or headers, it needs none;
/// elsewhere `007` becomes `7`. Always quote a password that begins or ends with a quote or a
/// space, or reads as a list or table, such as `[x]`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a password or URL.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// Returns the plain text, for a client library.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

/// Accepts text, and booleans and numbers parsed from unquoted text.
struct TextVisitor;

impl de::Visitor<'_> for TextVisitor {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text")
    }

    fn visit_str<E>(self, text: &str) -> Result<Secret, E> {
        Ok(Secret::new(text))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Secret, E> {
        Ok(Secret(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Secret, E> {
        Ok(Secret(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Secret, E> {
        Ok(Secret(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Secret, E> {
        Ok(Secret(value.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unquoted_values_are_text_and_debug_is_redacted() {
        for (value, text) in
            [("\"x\"", "x"), ("4711", "4711"), ("-1", "-1"), ("true", "true"), ("1.5", "1.5")]
        {
            let secret: Secret = serde_json::from_str(value).unwrap();
            assert_eq!(secret.expose(), text);
            assert_eq!(format!("{secret:?}"), "***");
        }
        assert!(serde_json::from_str::<Secret>("[\"x\"]").is_err());
    }
}
