//! Attribute values, validated at compile time.
//!
//! The ranges match `QueueSettings::policy` in `dq-core`, which validates again at run time because
//! the configuration may override the attribute.

use std::ops::RangeInclusive;
use std::time::Duration;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::parse::ParseStream;
use syn::{Expr, ExprLit, ExprUnary, Lit, LitStr, Path, UnOp};

/// In bytes, as in `QueueName::MAX_BYTES`.
const MAX_NAME_BYTES: usize = 128;

/// As in `QueueName::RESERVED_PREFIX`.
const RESERVED_PREFIX: &str = "dq.";

const LEASES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);

/// Checks a code as `QueueName::new` and `QueueName::refuse_reserved` do.
pub(crate) fn check_code(code: &LitStr) -> syn::Result<()> {
    let text = code.value();
    let mistake = if text.is_empty() {
        "the code is empty; name the queue, like \"ORDER_TIMEOUT\"".to_owned()
    } else if text.len() > MAX_NAME_BYTES {
        format!("the code has {} bytes; at most {MAX_NAME_BYTES} are allowed", text.len())
    } else if let Some(control) = text.chars().find(|c| c.is_control()) {
        format!("the code holds the control character {control:?}; leave it out")
    } else if text.starts_with(RESERVED_PREFIX) {
        format!("the code {text:?} is reserved: it begins with {RESERVED_PREFIX:?}; choose another")
    } else {
        return Ok(());
    };
    Err(syn::Error::new(code.span(), mistake))
}

pub(crate) fn expression(input: ParseStream<'_>) -> syn::Result<Expr> {
    input.parse().map(ungrouped)
}

/// Removes the invisible group that the compiler puts around a literal from a `macro_rules!`.
pub(crate) fn ungrouped(mut expression: Expr) -> Expr {
    while let Expr::Group(group) = expression {
        expression = *group.expr;
    }
    expression
}

pub(crate) fn string<'a>(value: &'a Expr, example: &str) -> syn::Result<&'a LitStr> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Ok(text),
        _ => Err(syn::Error::new_spanned(value, format!("expected a string, like {example}"))),
    }
}

pub(crate) fn crate_path(value: &Expr) -> syn::Result<Path> {
    string(value, "crate = \"::dq_core\"")?.parse_with(Path::parse_mod_style)
}

/// Reads a whole number from 1. `advice_for_zero` is part of the error for 0.
pub(crate) fn count(key: &str, value: &Expr, advice_for_zero: &str) -> syn::Result<u32> {
    if let Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) = value {
        return match number.base10_parse::<u32>() {
            Ok(0) => Err(syn::Error::new_spanned(value, format!("{key} is 0; {advice_for_zero}"))),
            Ok(number) => Ok(number),
            Err(_) => Err(syn::Error::new_spanned(
                value,
                format!("{key} is {number}; it must be 1 to {}", u32::MAX),
            )),
        };
    }
    Err(syn::Error::new_spanned(value, format!("{key} must be a whole number, like {key} = 5")))
}

/// `range` describes `within` in the error.
pub(crate) fn number(
    key: &str,
    value: &Expr,
    within: RangeInclusive<f64>,
    range: &str,
) -> syn::Result<f64> {
    match float(value) {
        Some(number) if within.contains(&number) => Ok(number),
        Some(number) => {
            Err(syn::Error::new_spanned(value, format!("{key} is {number:?}; it must be {range}")))
        }
        None => Err(syn::Error::new_spanned(
            value,
            format!("{key} must be a number, like {key} = {:?}", within.start()),
        )),
    }
}

fn float(value: &Expr) -> Option<f64> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Float(number), .. }) => number.base10_parse().ok(),
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse().ok(),
        Expr::Unary(ExprUnary { op: UnOp::Neg(_), expr, .. }) => float(expr).map(|number| -number),
        _ => None,
    }
}

pub(crate) fn duration(key: &str, value: &Expr) -> syn::Result<Duration> {
    if let Expr::Lit(ExprLit { lit: Lit::Int(_) | Lit::Float(_), .. }) = value {
        let number = value.to_token_stream();
        return Err(syn::Error::new_spanned(
            value,
            format!("{key} has no unit; write \"{number}s\" for seconds"),
        ));
    }
    let text = string(value, "\"30s\"")?;
    humantime::parse_duration(&text.value()).map_err(|error| {
        syn::Error::new_spanned(
            value,
            format!(
                "{:?} is not a duration ({error}); write it like \"30s\", \"15m\" or \"1h 30m\"",
                text.value()
            ),
        )
    })
}

pub(crate) fn lease(value: &Expr) -> syn::Result<Duration> {
    let lease = duration("lease", value)?;
    if LEASES.contains(&lease) {
        return Ok(lease);
    }
    let message = format!("lease is {}; it must be 1s to 1d", value.to_token_stream());
    Err(syn::Error::new_spanned(value, message))
}

/// Reads a duration. `advice_for_zero` is part of the error for zero.
pub(crate) fn positive(key: &str, value: &Expr, advice_for_zero: &str) -> syn::Result<Duration> {
    match duration(key, value)? {
        Duration::ZERO => {
            Err(syn::Error::new_spanned(value, format!("{key} is 0; {advice_for_zero}")))
        }
        duration => Ok(duration),
    }
}

/// Reads a time limit; `"none"` is [`Duration::MAX`].
pub(crate) fn limit(key: &str, value: &Expr) -> syn::Result<Duration> {
    if string(value, "").is_ok_and(|text| text.value() == "none") {
        return Ok(Duration::MAX);
    }
    positive(key, value, &format!("write {key} = \"none\" for no limit"))
}

pub(crate) fn duration_tokens(duration: Duration, private: &TokenStream) -> TokenStream {
    if duration == Duration::MAX {
        return quote!(#private::Duration::MAX);
    }
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    quote!(#private::Duration::new(#seconds, #nanos))
}
