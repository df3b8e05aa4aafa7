//! Settings that are whole numbers: what they may be, and what is said of others.

use dq_core::{Error, Result};
use serde::{Deserialize, Deserializer, de};

use crate::config::refused;

/// A setting that is a whole number, and what it may be.
pub(crate) struct Whole {
    pub(crate) field: &'static str,
    pub(crate) least: u32,
    pub(crate) most: u32,
    pub(crate) usual: u32,
}

impl Whole {
    fn remedy(&self) -> String {
        let Self { least, most, usual, .. } = self;
        format!("give it a whole number between {least} and {most}; it is {usual} unless set")
    }

    /// What is wrong with a number that is not in the range.
    fn fault(&self, number: impl std::fmt::Display) -> Error {
        refused(format!("the field `{}` is {number}", self.field), self.remedy())
    }

    /// Refuses a number that is not in the range.
    pub(crate) fn check(&self, number: u32) -> Result<()> {
        if (self.least..=self.most).contains(&number) { Ok(()) } else { Err(self.fault(number)) }
    }

    /// Reads any number, so that one that does not fit its type is told like any other.
    pub(crate) fn read<'de, T: TryFrom<u64>, D: Deserializer<'de>>(
        &self,
        deserializer: D,
    ) -> Result<T, D::Error> {
        let number = match Number::deserialize(deserializer)? {
            Number::Whole(number) => T::try_from(number).map_err(|_| number.to_string()),
            Number::Negative(number) => Err(number.to_string()),
            Number::Fraction(number) => Err(number.to_string()),
            Number::Text(text) if text.parse::<f64>().is_ok() => Err(format!("the text {text:?}")),
            // In a URL, other text may be a piece of a password.
            Number::Text(_) => Err("no number".to_owned()),
        };
        number.map_err(|number| in_serde(&self.fault(number)))
    }
}

/// What may stand where a whole number should.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a whole number")]
enum Number {
    Whole(u64),
    Negative(i64),
    Fraction(f64),
    Text(String),
}

/// The sentence of an error and its remedy, for an error that has room for one text only.
fn in_serde<E: de::Error>(error: &Error) -> E {
    let remedy = error.remedy_text().unwrap_or_default();
    E::custom(format!("{}: {remedy}", error.message()))
}
