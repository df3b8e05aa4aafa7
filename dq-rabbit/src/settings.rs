//! Integer settings with range and default.

use dq_core::config::invalid_setting;
use dq_core::{Error, Result};
use serde::{Deserialize, Deserializer, de};

pub(crate) struct IntegerSetting {
    pub(crate) field: &'static str,
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) default: u32,
}

impl IntegerSetting {
    fn remedy(&self) -> String {
        let Self { min, max, default, .. } = self;
        format!("set it to an integer between {min} and {max}; the default is {default}")
    }

    fn out_of_range(&self, value: impl std::fmt::Display) -> Error {
        invalid_setting(format!("the field `{}` is {value}", self.field), self.remedy())
    }

    /// # Errors
    /// `Config` with the field and its range.
    pub(crate) fn check(&self, value: u32) -> Result<()> {
        if (self.min..=self.max).contains(&value) { Ok(()) } else { Err(self.out_of_range(value)) }
    }

    /// Accepts any number, so that a value that does not fit `T` gets the same message as one out
    /// of range.
    pub(crate) fn deserialize<'de, T: TryFrom<u64>, D: Deserializer<'de>>(
        &self,
        deserializer: D,
    ) -> Result<T, D::Error> {
        let value = match Input::deserialize(deserializer)? {
            Input::Unsigned(value) => T::try_from(value).map_err(|_| value.to_string()),
            Input::Negative(value) => Err(value.to_string()),
            Input::Fraction(value) => Err(value.to_string()),
            Input::Text(text) if text.parse::<f64>().is_ok() => Err(format!("the text {text:?}")),
            // In a URL, other text may be part of a password.
            Input::Text(_) => Err("not a number".to_owned()),
        };
        value.map_err(|value| to_serde(&self.out_of_range(value)))
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected an integer")]
enum Input {
    Unsigned(u64),
    Negative(i64),
    Fraction(f64),
    Text(String),
}

/// Serde errors have no remedy, so the text contains it.
fn to_serde<E: de::Error>(error: &Error) -> E {
    let remedy = error.remedy_text().unwrap_or_default();
    E::custom(format!("{}: {remedy}", error.message()))
}
