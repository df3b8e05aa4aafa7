//! Parses a handler's schedule: `cron = "30 2 * * *", tz = "Europe/Stockholm", …`.

use std::time::Duration;

use dq_cron::{Cron, ErrorKind, Interval};
use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::spanned::Spanned;
use syn::{Expr, Ident, LitStr};

use crate::errors::Errors;
use crate::value::{self, duration_tokens};

/// In documentation order.
pub(super) const KEYS: [&str; 7] =
    ["cron", "every", "tz", "catch_up", "overlap", "deadline", "jitter"];

/// For `CatchUp::All`.
const MAX_CATCH_UP: u32 = 1_000;

#[derive(Default)]
pub(super) struct Draft {
    first: Option<Ident>,
    cron: Option<LitStr>,
    every: Option<(Ident, Duration)>,
    tz: Option<LitStr>,
    catch_up: Option<CatchUp>,
    overlap: Option<&'static str>,
    deadline: Option<Duration>,
    jitter: Option<Duration>,
    /// A value is missing because it had an error.
    is_incomplete: bool,
}

pub(super) struct Schedule {
    times: Times,
    catch_up: Option<CatchUp>,
    overlap: Option<&'static str>,
    deadline: Option<Duration>,
    jitter: Option<Duration>,
}

enum Times {
    Cron { expression: String, zone: String },
    Every(Duration),
}

#[derive(Clone, Copy)]
enum CatchUp {
    Last,
    None,
    All(u32),
}

impl Draft {
    /// `key` is one of the [`KEYS`].
    pub(super) fn set(&mut self, key: &Ident, value: &Expr) -> syn::Result<()> {
        self.first.get_or_insert_with(|| key.clone());
        let result = self.parse(key, value);
        self.is_incomplete |= result.is_err();
        result
    }

    fn parse(&mut self, key: &Ident, value: &Expr) -> syn::Result<()> {
        let name = key.to_string();
        match name.as_str() {
            "cron" => {
                self.cron = Some(value::string(value, "cron = \"30 2 * * *\"")?.clone());
            }
            "tz" => self.tz = Some(value::string(value, "tz = \"Europe/Stockholm\"")?.clone()),
            "every" => {
                let every = value::duration(&name, value)?;
                Interval::new(every).map_err(|error| syn::Error::new_spanned(value, error))?;
                self.every = Some((key.clone(), every));
            }
            "catch_up" => self.catch_up = Some(catch_up(value)?),
            "overlap" => self.overlap = Some(overlap(value)?),
            "deadline" => self.deadline = Some(positive(&name, value)?),
            "jitter" => self.jitter = Some(positive(&name, value)?),
            _ => unreachable!("`Keys` let an unknown key through"),
        }
        Ok(())
    }

    /// `None` if no key was given or a key has an error already.
    pub(super) fn finish(self, errors: &mut Errors) -> Option<Schedule> {
        let first = self.first?;
        if self.is_incomplete {
            return None;
        }
        let times = errors.keep(times(&first, self.cron, self.every, self.tz))?;
        let Self { catch_up, overlap, deadline, jitter, .. } = self;
        Some(Schedule { times, catch_up, overlap, deadline, jitter })
    }
}

fn times(
    first: &Ident,
    cron: Option<LitStr>,
    every: Option<(Ident, Duration)>,
    tz: Option<LitStr>,
) -> syn::Result<Times> {
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
            Ok(Times::Cron { expression: cron.value(), zone })
        }
        (None, Some((_, every))) => match tz {
            Some(tz) => {
                Err(syn::Error::new(tz.span(), "`tz` belongs to `cron`; `every` has no time zone"))
            }
            None => Ok(Times::Every(every)),
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

fn catch_up(value: &Expr) -> syn::Result<CatchUp> {
    let text = value::string(value, "catch_up = \"last\"")?.value();
    let all = text.strip_prefix("all:").and_then(|max| max.parse::<u32>().ok());
    match (text.as_str(), all) {
        ("last", _) => Ok(CatchUp::Last),
        ("none", _) => Ok(CatchUp::None),
        (_, Some(max @ 1..=MAX_CATCH_UP)) => Ok(CatchUp::All(max)),
        _ => Err(syn::Error::new(
            value.span(),
            "catch_up must be \"last\", \"none\", or \"all:10\" with a number from 1 to 1000",
        )),
    }
}

fn overlap(value: &Expr) -> syn::Result<&'static str> {
    match value::string(value, "overlap = \"skip\"")?.value().as_str() {
        "skip" => Ok("Skip"),
        "allow" => Ok("Allow"),
        "queue_one" => Ok("QueueOne"),
        _ => Err(syn::Error::new(
            value.span(),
            "overlap must be \"skip\", \"allow\" or \"queue_one\"",
        )),
    }
}

fn positive(key: &str, value: &Expr) -> syn::Result<Duration> {
    match value::duration(key, value)? {
        Duration::ZERO => {
            Err(syn::Error::new_spanned(value, format!("{key} is 0; leave it out, or set a time")))
        }
        duration => Ok(duration),
    }
}

impl Schedule {
    /// Without the payload.
    pub(super) fn tokens(&self, private: &TokenStream) -> TokenStream {
        let duration = |value| duration_tokens(value, private);
        let times = match &self.times {
            Times::Cron { expression, zone } => quote!(.cron(#expression, #zone)),
            Times::Every(every) => {
                let every = duration(*every);
                quote!(.every(#every))
            }
        };
        let catch_up = self.catch_up.map(|it| it.tokens(private));
        let overlap = self.overlap.map(|name| {
            let name = quote::format_ident!("{name}");
            quote!(.overlap(#private::Overlap::#name))
        });
        let deadline = self.deadline.map(duration).map(|it| quote!(.deadline(#it)));
        let jitter = self.jitter.map(duration).map(|it| quote!(.jitter(#it)));
        quote!(#private::ScheduleSettings::new() #times #catch_up #overlap #deadline #jitter)
    }
}

impl CatchUp {
    fn tokens(self, private: &TokenStream) -> impl ToTokens {
        let value = match self {
            Self::Last => quote!(Last),
            Self::None => quote!(None),
            Self::All(max) => {
                quote!(All(const { #private::NonZeroU32::new(#max).unwrap() }))
            }
        };
        quote!(.catch_up(#private::CatchUp::#value))
    }
}
