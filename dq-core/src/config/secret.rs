//! Text that is not to be seen in logs and errors.

use std::fmt;

use serde::{Deserialize, Deserializer, de};

/// Text that is never shown: a password, or a URL with one in it.
///
/// A password of digits need not stand in quotes; one that would be another number if it were
/// written anew, such as `1.50`, must in a file, but not in an environment variable.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The secret itself, for handing to a client library.
    #[must_use]
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
        deserializer.deserialize_any(Text)
    }
}

/// Takes text, and what a file or a variable takes for something better.
struct Text;

impl de::Visitor<'_> for Text {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text")
    }

    fn visit_str<E>(self, text: &str) -> Result<Secret, E> {
        Ok(Secret::new(text))
    }

    fn visit_string<E>(self, text: String) -> Result<Secret, E> {
        Ok(Secret(text))
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
    fn digits_are_text_and_nothing_is_shown() {
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
