//! The value of `rate`, such as `"10/1s burst 20"`. The ranges are those of `Rate` in `dq-core`.

use std::time::Duration;

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Expr, LitStr};

use crate::value::{self, duration_tokens};

pub(super) fn tokens(value: &Expr, private: &TokenStream) -> syn::Result<TokenStream> {
    let text = value::string(value, "\"10/1s\"")?;
    let (jobs, per, burst) = parse(&text.value()).map_err(|mistake| mistake_at(text, &mistake))?;
    let per = duration_tokens(per, private);
    let rate = quote!(#private::Rate::new(#jobs, #per));
    // Both cannot fail: the ranges are checked.
    Ok(match burst {
        Some(burst) => quote!(#rate.and_then(|rate| rate.burst(#burst)).expect("a valid rate")),
        None => quote!(#rate.expect("a valid rate")),
    })
}

fn mistake_at(text: &LitStr, mistake: &str) -> syn::Error {
    let message = format!(
        "{:?} is not a rate: {mistake}; write jobs and a time, like \"100/1m\" or \"10/1s burst 20\"",
        text.value()
    );
    syn::Error::new(text.span(), message)
}

fn parse(text: &str) -> Result<(u32, Duration, Option<u32>), String> {
    let (rate, burst) = match text.split_once("burst") {
        Some((rate, burst)) => (rate, Some(burst)),
        None => (text, None),
    };
    let (jobs, per) = rate.split_once('/').ok_or("it has no '/'")?;
    let jobs = number(jobs).ok_or("it does not begin with a number")?;
    let per = per.trim();
    let is_unit = per.starts_with(|first: char| first.is_ascii_alphabetic());
    let per = humantime::parse_duration(&format!("{}{per}", if is_unit { "1" } else { "" }))
        .map_err(|error| error.to_string())?;
    if jobs == 0 {
        return Err("no job starts; to stop a queue, pause it".to_owned());
    }
    if per < Duration::from_millis(1) || per > Duration::from_secs(86_400) {
        return Err("the time must be 1 ms to 1 day".to_owned());
    }
    if per / jobs < Duration::from_micros(100) {
        return Err("it is more than 10,000 jobs a second".to_owned());
    }
    let burst = burst.map(|burst| number(burst).ok_or("its burst is not a number")).transpose()?;
    if burst.is_some_and(|burst| !(1..=10_000).contains(&burst)) {
        return Err("the burst must be 1 to 10,000".to_owned());
    }
    Ok((jobs, per, burst))
}

fn number(text: &str) -> Option<u32> {
    let text = text.trim();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
