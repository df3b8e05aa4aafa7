//! Parses a handler's schedule: `cron = "30 2 * * *", tz = "Europe/Stockholm", …`.

use std::time::Duration;

use dq_cron::{Cron, ErrorKind, Interval};
use proc_macro2::TokenStream;
use quote::quote;
use syn::spanned::Spanned;
use syn::{Expr, Ident, LitStr};

use crate::errors::Errors;
use crate::value::{self, duration_tokens};

/// The keys of a schedule, in documentation order.
pub(super) const KEYS: [&str; 7] =
    ["cron", "every", "tz", "catch_up", "overlap", "deadline", "jitter"];

/// The largest number in `catch_up = "all:…"`, as in `CatchUp::MAX`.
const MAX_CATCH_UP: u32 = 1_000;

#[derive(Default)]
pub(super) struct Draft {
    first: Option<Ident>,
    cron: Option<LitStr>,
    every: Option<(Ident, Duration)>,
    tz: Option<LitStr>,
    /// The calls that set the other keys.
    policies: TokenStream,
    /// Whether a value is missing because it had an error.
    is_incomplete: bool,
}

impl Draft {
    /// `key` is one of the [`KEYS`].
    pub(super) fn set(
        &mut self,
        key: &Ident,
        value: &Expr,
        private: &TokenStream,
    ) -> syn::Result<()> {
        self.first.get_or_insert_with(|| key.clone());
        let result = self.parse(key, value, private);
        self.is_incomplete |= result.is_err();
        result
    }

    fn parse(&mut self, key: &Ident, value: &Expr, private: &TokenStream) -> syn::Result<()> {
        let name = &*key.to_string();
        let value = match name {
            "cron" => {
                self.cron = Some(value::string(value, "cron = \"30 2 * * *\"")?.clone());
                return Ok(());
            }
            "tz" => {
                self.tz = Some(value::string(value, "tz = \"Europe/Stockholm\"")?.clone());
                return Ok(());
            }
            "every" => {
                let every = value::duration(name, value)?;
                Interval::new(every).map_err(|error| syn::Error::new_spanned(value, error))?;
                self.every = Some((key.clone(), every));
                return Ok(());
            }
            "catch_up" => catch_up(value, private)?,
            "overlap" => overlap(value, private)?,
            "deadline" | "jitter" => {
                let time = value::positive(name, value, "leave it out, or set a time")?;
                duration_tokens(time, private)
            }
            _ => unreachable!("`Keys` let an unknown key through"),
        };
        self.policies.extend(quote!(.#key(#value)));
        Ok(())
    }

    /// Returns an expression of type `ScheduleSettings`, without the payload. `None` if no key was
    /// given or a key has an error already.
    pub(super) fn finish(self, errors: &mut Errors, private: &TokenStream) -> Option<TokenStream> {
        let first = self.first?;
        if self.is_incomplete {
            return None;
        }
        let times = errors.keep(times(&first, self.cron, self.every, self.tz, private))?;
        let policies = self.policies;
        Some(quote!(#private::ScheduleSettings::new() #times #policies))
    }
}

fn times(
    first: &Ident,
    cron: Option<LitStr>,
    every: Option<(Ident, Duration)>,
    tz: Option<LitStr>,
    private: &TokenStream,
) -> syn::Result<TokenStream> {
    match (cron, every) {
        (Some(cron), None) => {
            let zone = tz.as_ref().map_or_else(|| "UTC".to_owned(), LitStr::value);
            if let Err(error) = Cron::new(&cron.value(), &zone) {
                let span = match (error.kind(), &tz) {
                    (ErrorKind::Zone, Some(tz)) => tz.span(),
                    _ => cron.span(),
                };
                return Err(syn::Error::new(span, error));
            }
            Ok(quote!(.cron(#cron, #zone)))
        }
        (None, Some((_, every))) => match tz {
            Some(tz) => {
                Err(syn::Error::new(tz.span(), "`tz` belongs to `cron`; `every` has no time zone"))
            }
            None => {
                let every = duration_tokens(every, private);
                Ok(quote!(.every(#every)))
            }
        },
        (Some(_), Some((key, _))) => {
            Err(syn::Error::new(key.span(), "`cron` and `every` are both given; keep one"))
        }
        (None, None) => Err(syn::Error::new(
            first.span(),
            format!(
                "`{first}` belongs to a schedule; add `cron = \"30 2 * * *\"` or `every = \"90s\"`"
            ),
        )),
    }
}

fn catch_up(value: &Expr, private: &TokenStream) -> syn::Result<TokenStream> {
    let text = value::string(value, "catch_up = \"last\"")?.value();
    let all = text.strip_prefix("all:").and_then(|max| max.parse::<u32>().ok());
    match (text.as_str(), all) {
        ("last", _) => Ok(quote!(#private::CatchUp::Last)),
        ("none", _) => Ok(quote!(#private::CatchUp::None)),
        (_, Some(max @ 1..=MAX_CATCH_UP)) => {
            Ok(quote!(#private::CatchUp::All(const { #private::NonZeroU32::new(#max).unwrap() })))
        }
        _ => Err(syn::Error::new(
            value.span(),
            "catch_up must be \"last\", \"none\", or \"all:10\" with a number from 1 to 1000",
        )),
    }
}

fn overlap(value: &Expr, private: &TokenStream) -> syn::Result<TokenStream> {
    match value::string(value, "overlap = \"skip\"")?.value().as_str() {
        "skip" => Ok(quote!(#private::Overlap::Skip)),
        "allow" => Ok(quote!(#private::Overlap::Allow)),
        "queue_one" => Ok(quote!(#private::Overlap::QueueOne)),
        _ => Err(syn::Error::new(
            value.span(),
            "overlap must be \"skip\", \"allow\" or \"queue_one\"",
        )),
    }
}
