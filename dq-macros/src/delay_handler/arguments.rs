//! Parses the arguments in `#[delay_handler(…)]`.

use std::time::Duration;

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::spanned::Spanned;
use syn::{Expr, ExprLit, Ident, Lit, LitStr, Path, Token, parenthesized};

use super::policies::Policies;
use super::rate;
use super::schedule;
use super::slots::{self, Slots};
use crate::errors::Errors;
use crate::value::{self, duration_tokens};

const KEYS: &[&str] = &[
    "max_attempts",
    "timeout",
    "lease",
    "concurrency",
    "priority",
    "reserve",
    "max_running",
    "group_max_running",
    "rate",
    "max_losses",
    "backoff",
    "late",
    "escalate",
    "escalate_from",
    "guard",
    "guard_timeout",
    "version",
    "upgrade_from",
    "aliases",
    "blocking",
    "cron",
    "every",
    "tz",
    "catch_up",
    "overlap",
    "deadline",
    "jitter",
    "crate",
];
const LATE_KEYS: &[&str] = &["after", "then"];
const BACKOFF_KEYS: &[&str] = &["initial", "factor", "max", "jitter"];

/// `Backoff` defaults, to check that `initial` is not longer than `max`.
const DEFAULT_INITIAL: Duration = Duration::from_secs(1);
const DEFAULT_MAX: Duration = Duration::from_secs(600);

pub(super) enum Code {
    /// Validated at compile time.
    Literal(LitStr),
    /// Validated when the program starts.
    Expression(Box<Expr>),
}

pub(super) struct Arguments {
    pub(super) code: Code,
    /// An expression of type `QueueSettings`.
    pub(super) settings: TokenStream,
    /// An expression of type `ScheduleSettings`, without the payload.
    pub(super) schedule: Option<TokenStream>,
    pub(super) policies: Policies,
    pub(super) blocking: bool,
}

impl Arguments {
    /// `private` is the path of the generated code's items.
    pub(super) fn parse(input: ParseStream<'_>, private: &TokenStream) -> syn::Result<Self> {
        let mut errors = Errors::default();
        let code = errors.keep(code(input));
        let mut keys = Keys::new(KEYS);
        let mut settings = quote!(#private::QueueSettings::new());
        let mut slots = Slots::default();
        let mut schedule = schedule::Draft::default();
        let mut policies = Policies::default();
        let mut blocking = false;
        while !input.is_empty() {
            // A syntax error ends parsing.
            let Some(key) = errors.keep(keys.next(input)) else {
                break;
            };
            let (name, errors) = (key.to_string(), &mut errors);
            match name.as_str() {
                "blocking" => {
                    blocking = true;
                    if input.peek(Token![=]) {
                        let message = "`blocking` takes no value";
                        errors.push(syn::Error::new(key.span(), message));
                        if errors.keep(assigned(&key, input)).is_none() {
                            break;
                        }
                    }
                }
                "late" => settings.extend(errors.keep(late(&key, input, private))),
                "upgrade_from" => {
                    if errors.keep(policies.parse_upgrades(&key, input)).is_none() {
                        break;
                    }
                }
                "backoff" => settings.extend(errors.keep(backoff(&key, input, private))),
                _ => {
                    let Some(value) = errors.keep(assigned(&key, input)) else {
                        break;
                    };
                    if name == "crate" {
                        // `crate_path` has read it.
                        errors.keep(value::crate_path(&value));
                    } else if slots::KEYS.contains(&name.as_str()) {
                        settings.extend(errors.keep(slots.set(&key, &value, private)));
                    } else if schedule::KEYS.contains(&name.as_str()) {
                        errors.keep(schedule.set(&key, &value, private));
                    } else if Policies::has(&name) {
                        errors.keep(policies.set(&key, &value));
                    } else {
                        settings.extend(errors.keep(setting(&key, &value, private)));
                    }
                }
            }
            if errors.keep(comma(input)).is_none() {
                break;
            }
        }
        slots.check(&mut errors);
        let schedule = schedule.finish(&mut errors, private);
        keys.report(&mut errors);
        let literal = match &code {
            Some(Code::Literal(code)) => Some(code),
            _ => None,
        };
        policies.check(literal, &mut errors);
        errors.finish()?;
        let Some(code) = code else {
            return Err(input.error(MISSING_CODE));
        };
        Ok(Self { code, settings, schedule, policies, blocking })
    }
}

/// Finds the path in `crate = "…"`, even if other arguments contain errors.
pub(super) fn crate_path(arguments: TokenStream) -> Option<Path> {
    let tokens: Vec<_> = arguments.into_iter().collect();
    tokens.windows(3).find_map(|window| match window {
        [TokenTree::Ident(key), TokenTree::Punct(equals), value]
            if key == "crate" && equals.as_char() == '=' =>
        {
            let value = syn::parse2(value.clone().into()).ok()?;
            value::crate_path(&value::ungrouped(value)).ok()
        }
        _ => None,
    })
}

const MISSING_CODE: &str = "the code is missing; it names the queue and comes first: \
     `#[delay_handler(\"ORDER_TIMEOUT\")]`";

/// Parses the first argument, and the comma after it.
fn code(input: ParseStream<'_>) -> syn::Result<Code> {
    if input.is_empty() || starts_with_key(input) {
        return Err(syn::Error::new(input.span(), MISSING_CODE));
    }
    let code = match value::expression(input)? {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => {
            value::check_code(&text).map(|()| Code::Literal(text))
        }
        Expr::Lit(other) => Err(syn::Error::new(
            other.span(),
            "the code must be a string, like \"ORDER_TIMEOUT\", a constant, or a variant of an \
             enum with `#[derive(dq::QueueCode)]`",
        )),
        other => Ok(Code::Expression(Box::new(other))),
    };
    comma(input)?;
    code
}

fn starts_with_key(input: ParseStream<'_>) -> bool {
    let ahead = input.fork();
    let Ok(word) = ahead.call(Ident::parse_any) else {
        return false;
    };
    let assigns = ahead.peek(Token![=]) && !ahead.peek(Token![==]);
    // `crate::CODE` is a constant.
    assigns || (KEYS.contains(&word.to_string().as_str()) && !ahead.peek(Token![::]))
}

/// Parses the comma between arguments, which is optional after the last one.
fn comma(input: ParseStream<'_>) -> syn::Result<()> {
    if input.is_empty() || input.parse::<Option<Token![,]>>()?.is_some() {
        Ok(())
    } else {
        Err(input.error("expected a comma"))
    }
}

/// Parses `= value` after `key`.
fn assigned(key: &Ident, input: ParseStream<'_>) -> syn::Result<Expr> {
    if !input.peek(Token![=]) {
        return Err(syn::Error::new(key.span(), format!("`{key}` needs a value: `{key} = …`")));
    }
    input.parse::<Token![=]>()?;
    value::expression(input)
}

/// Returns the call that sets `key` in `QueueSettings`; it is one of the [`KEYS`] with a plain
/// value.
fn setting(key: &Ident, value: &Expr, private: &TokenStream) -> syn::Result<TokenStream> {
    let name = &*key.to_string();
    let value = match name {
        "max_attempts" => value::count(name, value, "write 1 for no retry")?.into_token_stream(),
        "timeout" => duration_tokens(value::limit(name, value)?, private),
        "lease" => duration_tokens(value::lease(value)?, private),
        "max_running" | "group_max_running" => {
            value::count(name, value, "write at least 1; to stop a queue, pause it")?
                .into_token_stream()
        }
        "rate" => rate::tokens(value, private)?,
        "max_losses" => value::count(name, value, "write at least 1")?.into_token_stream(),
        _ => unreachable!("`Keys` let an unknown key through"),
    };
    Ok(quote!(.#key(#value)))
}

/// Parses `(key = value, …)` after `key`, or says to write `example`.
fn table(
    key: &Ident,
    input: ParseStream<'_>,
    known: &'static [&'static str],
    example: &str,
    mut set: impl FnMut(&Ident, &Expr) -> syn::Result<()>,
) -> syn::Result<()> {
    if !input.peek(syn::token::Paren) {
        // Skips the value so that parsing can continue.
        if input.peek(Token![=]) {
            assigned(key, input)?;
        }
        return Err(syn::Error::new(key.span(), format!("write `{example}`")));
    }
    let inside;
    parenthesized!(inside in input);
    let mut errors = Errors::default();
    let mut keys = Keys::new(known);
    while !inside.is_empty() {
        let key = keys.next(&inside)?;
        let value = assigned(&key, &inside)?;
        errors.keep(set(&key, &value));
        comma(&inside)?;
    }
    keys.report(&mut errors);
    errors.finish()
}

fn backoff(key: &Ident, input: ParseStream<'_>, private: &TokenStream) -> syn::Result<TokenStream> {
    let example = "backoff(initial = \"1s\", factor = 2.0, max = \"10m\", jitter = 0.2)";
    let mut settings = quote!(#private::BackoffSettings::new());
    let (mut initial, mut max) = (DEFAULT_INITIAL, DEFAULT_MAX);
    table(key, input, BACKOFF_KEYS, example, |key, value| {
        let name = &*key.to_string();
        let value = match name {
            "initial" => {
                initial = value::duration(name, value)?;
                duration_tokens(initial, private)
            }
            "max" => {
                max = value::duration(name, value)?;
                duration_tokens(max, private)
            }
            "factor" => {
                value::number(name, value, 1.0..=f64::MAX, "at least 1.0")?.into_token_stream()
            }
            _ => value::number(name, value, 0.0..=1.0, "0.0 to 1.0")?.into_token_stream(),
        };
        settings.extend(quote!(.#key(#value)));
        Ok(())
    })?;
    if initial > max {
        return Err(syn::Error::new(
            key.span(),
            "`initial` is longer than `max` (unless set, `initial` is 1s and `max` is 10m)",
        ));
    }
    Ok(quote!(.backoff(#settings)))
}

fn late(key: &Ident, input: ParseStream<'_>, private: &TokenStream) -> syn::Result<TokenStream> {
    let example = "late(after = \"5m\", then = \"skip\")";
    let (mut after, mut then) = (None, None);
    table(key, input, LATE_KEYS, example, |key, value| {
        if key == "after" {
            let advice = "every job starts a little late, so write at least \"1s\"";
            after = Some(duration_tokens(value::positive("after", value, advice)?, private));
        } else {
            then = Some(late_then(value, private)?);
        }
        Ok(())
    })?;
    match (after, then) {
        (Some(after), Some(then)) => Ok(quote!(.late(#private::LatePolicy::new(#after, #then)))),
        _ => Err(syn::Error::new(key.span(), format!("write `{example}`"))),
    }
}

fn late_then(value: &Expr, private: &TokenStream) -> syn::Result<TokenStream> {
    let text = value::string(value, "then = \"skip\"")?;
    match text.value().as_str() {
        "run" => Ok(quote!(#private::LateAction::Run)),
        "skip" => Ok(quote!(#private::LateAction::Skip)),
        "dead" => Ok(quote!(#private::LateAction::Dead)),
        other => match other.strip_prefix("queue:") {
            Some(queue) => {
                value::check_code(&LitStr::new(queue, text.span()))?;
                Ok(quote!(#private::adapter::late_queue(#queue)))
            }
            None => Err(syn::Error::new_spanned(
                value,
                "then must be \"run\", \"skip\", \"dead\" or \"queue:NAME\"",
            )),
        },
    }
}

/// Reads keys. An unknown or repeated key is an error.
struct Keys {
    known: &'static [&'static str],
    seen: Vec<Ident>,
    repeated: Vec<Ident>,
}

impl Keys {
    fn new(known: &'static [&'static str]) -> Self {
        Self { known, seen: Vec::new(), repeated: Vec::new() }
    }

    /// Parses the next key. An unknown key is an immediate error.
    fn next(&mut self, input: ParseStream<'_>) -> syn::Result<Ident> {
        let known = || self.known.join(", ");
        let Ok(key) = input.fork().call(Ident::parse_any) else {
            return Err(input.error(format!("expected one of: {}", known())));
        };
        if !self.known.iter().any(|known| key == known) {
            return Err(syn::Error::new(
                key.span(),
                format!("unknown key `{key}`; expected one of: {}", known()),
            ));
        }
        input.call(Ident::parse_any)?;
        if self.seen.contains(&key) {
            self.repeated.push(key.clone());
        } else {
            self.seen.push(key.clone());
        }
        Ok(key)
    }

    /// Adds an error for each repeated key. Call it last, so that errors in values come first.
    fn report(self, errors: &mut Errors) {
        for key in self.repeated {
            errors.push(syn::Error::new(key.span(), format!("`{key}` is given twice; keep one")));
        }
    }
}
