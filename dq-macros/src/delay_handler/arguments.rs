//! Parses the arguments in `#[delay_handler(…)]`.

use std::time::Duration;

use proc_macro2::{TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Expr, ExprLit, Ident, Lit, LitStr, Path, Token, parenthesized};

use super::policies::Policies;
use super::schedule::{self, Schedule};
use crate::errors::Errors;
use crate::value;

const KEYS: &[&str] = &[
    "max_attempts",
    "timeout",
    "lease",
    "concurrency",
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
    pub(super) settings: Settings,
    pub(super) schedule: Option<Schedule>,
    pub(super) policies: Policies,
    pub(super) blocking: bool,
    pub(super) krate: Option<Path>,
}

#[derive(Default)]
pub(super) struct Settings {
    pub(super) max_attempts: Option<u32>,
    pub(super) timeout: Option<Duration>,
    pub(super) lease: Option<Duration>,
    pub(super) concurrency: Option<u32>,
    pub(super) max_losses: Option<u32>,
    pub(super) backoff: Option<Backoff>,
    pub(super) late: Option<Late>,
}

pub(super) struct Late {
    pub(super) after: Duration,
    pub(super) then: LateAction,
}

pub(super) enum LateAction {
    Run,
    Skip,
    Dead,
    Queue(String),
}

#[derive(Default)]
pub(super) struct Backoff {
    pub(super) initial: Option<Duration>,
    pub(super) factor: Option<f64>,
    pub(super) max: Option<Duration>,
    pub(super) jitter: Option<f64>,
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut errors = Errors::default();
        let code = errors.keep(code(input));
        let mut keys = Keys::new(KEYS);
        let mut settings = Settings::default();
        let mut schedule = schedule::Draft::default();
        let mut policies = Policies::default();
        let mut blocking = false;
        let mut krate = None;
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
                "late" => settings.late = errors.keep(late(&key, input)),
                "upgrade_from" => {
                    if errors.keep(policies.parse_upgrades(&key, input)).is_none() {
                        break;
                    }
                }
                "backoff" => settings.backoff = errors.keep(backoff(&key, input)),
                _ => {
                    let Some(value) = errors.keep(assigned(&key, input)) else {
                        break;
                    };
                    if name == "crate" {
                        krate = errors.keep(value::crate_path(&value));
                    } else if schedule::KEYS.contains(&name.as_str()) {
                        let result = schedule.set(&key, &value);
                        errors.keep(result);
                    } else if Policies::has(&name) {
                        let result = policies.set(&key, &value);
                        errors.keep(result);
                    } else {
                        let result = settings.set(&name, &value);
                        errors.keep(result);
                    }
                }
            }
            if errors.keep(comma(input)).is_none() {
                break;
            }
        }
        let schedule = schedule.finish(&mut errors);
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
        Ok(Self { code, settings, schedule, policies, blocking, krate })
    }
}

/// The arguments may contain errors.
pub(super) fn crate_path(arguments: TokenStream) -> Option<Path> {
    let tokens: Vec<_> = arguments.into_iter().collect();
    tokens.windows(3).find_map(|window| match window {
        [TokenTree::Ident(key), TokenTree::Punct(equals), value]
            if key == "crate" && equals.as_char() == '=' =>
        {
            value::crate_path(&syn::parse2(value.clone().into()).ok()?).ok()
        }
        _ => None,
    })
}

const MISSING_CODE: &str = "the code is missing; it names the queue and comes first: \
     `#[delay_handler(\"ORDER_TIMEOUT\")]`";

/// Includes the comma after it.
fn code(input: ParseStream<'_>) -> syn::Result<Code> {
    if input.is_empty() {
        return Err(syn::Error::new(input.span(), MISSING_CODE));
    }
    if starts_with_key(input) {
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

/// Optional after the last argument.
fn comma(input: ParseStream<'_>) -> syn::Result<()> {
    if input.is_empty() || input.parse::<Option<Token![,]>>()?.is_some() {
        Ok(())
    } else {
        Err(input.error("expected a comma"))
    }
}

fn assigned(key: &Ident, input: ParseStream<'_>) -> syn::Result<Expr> {
    if !input.peek(Token![=]) {
        return Err(syn::Error::new(key.span(), format!("`{key}` needs a value: `{key} = …`")));
    }
    input.parse::<Token![=]>()?;
    value::expression(input)
}

impl Settings {
    /// `key` is one of the [`KEYS`] with a plain value.
    fn set(&mut self, key: &str, value: &Expr) -> syn::Result<()> {
        match key {
            "max_attempts" => {
                self.max_attempts = Some(value::count(key, value, "write 1 for no retry")?);
            }
            "timeout" => self.timeout = Some(value::limit(key, value)?),
            "lease" => {
                let lease = value::duration_within(key, value, &value::LEASES, "1s to 1day")?;
                self.lease = Some(lease);
            }
            "concurrency" => {
                let advice = "write at least 1; to stop a queue, pause it";
                self.concurrency = Some(value::count(key, value, advice)?);
            }
            "max_losses" => self.max_losses = Some(value::count(key, value, "write at least 1")?),
            _ => unreachable!("`Keys` let an unknown key through"),
        }
        Ok(())
    }
}

/// `(initial = …, …)` after `backoff`.
fn backoff(key: &Ident, input: ParseStream<'_>) -> syn::Result<Backoff> {
    if !input.peek(syn::token::Paren) {
        // Skips the value so that parsing can continue.
        if input.peek(Token![=]) {
            assigned(key, input)?;
        }
        return Err(syn::Error::new(
            key.span(),
            "write `backoff(initial = \"1s\", factor = 2.0, max = \"10m\", jitter = 0.2)`",
        ));
    }
    let inside;
    parenthesized!(inside in input);
    let mut errors = Errors::default();
    let mut keys = Keys::new(BACKOFF_KEYS);
    let mut backoff = Backoff::default();
    while !inside.is_empty() {
        let key = keys.next(&inside)?;
        let value = assigned(&key, &inside)?;
        let result = backoff.set(&key.to_string(), &value);
        errors.keep(result);
        comma(&inside)?;
    }
    keys.report(&mut errors);
    if backoff.initial.unwrap_or(DEFAULT_INITIAL) > backoff.max.unwrap_or(DEFAULT_MAX) {
        errors.push(syn::Error::new(
            key.span(),
            "`initial` is longer than `max` (unless set, `initial` is 1s and `max` is 10m)",
        ));
    }
    errors.finish()?;
    Ok(backoff)
}

/// `(after = …, then = …)` after `late`.
fn late(key: &Ident, input: ParseStream<'_>) -> syn::Result<Late> {
    const EXAMPLE: &str = "write `late(after = \"5m\", then = \"skip\")`";
    if !input.peek(syn::token::Paren) {
        // Skips the value so that parsing can continue.
        if input.peek(Token![=]) {
            assigned(key, input)?;
        }
        return Err(syn::Error::new(key.span(), EXAMPLE));
    }
    let inside;
    parenthesized!(inside in input);
    let mut errors = Errors::default();
    let mut keys = Keys::new(LATE_KEYS);
    let (mut after, mut then) = (None, None);
    while !inside.is_empty() {
        let key = keys.next(&inside)?;
        let value = assigned(&key, &inside)?;
        if key == "after" {
            after = errors.keep(late_after(&value));
        } else {
            then = errors.keep(late_then(&value));
        }
        comma(&inside)?;
    }
    keys.report(&mut errors);
    errors.finish()?;
    match (after, then) {
        (Some(after), Some(then)) => Ok(Late { after, then }),
        _ => Err(syn::Error::new(key.span(), EXAMPLE)),
    }
}

fn late_after(value: &Expr) -> syn::Result<Duration> {
    match value::duration("after", value)? {
        Duration::ZERO => Err(syn::Error::new_spanned(
            value,
            "after is 0, and every job starts a little late; write at least \"1s\"",
        )),
        after => Ok(after),
    }
}

fn late_then(value: &Expr) -> syn::Result<LateAction> {
    let text = value::string(value, "then = \"skip\"")?;
    match text.value().as_str() {
        "run" => Ok(LateAction::Run),
        "skip" => Ok(LateAction::Skip),
        "dead" => Ok(LateAction::Dead),
        other => match other.strip_prefix("queue:") {
            Some(queue) => {
                value::check_code(&LitStr::new(queue, text.span()))?;
                Ok(LateAction::Queue(queue.to_owned()))
            }
            None => Err(syn::Error::new_spanned(
                value,
                "then must be \"run\", \"skip\", \"dead\" or \"queue:NAME\"",
            )),
        },
    }
}

impl Backoff {
    /// `key` is one of the [`BACKOFF_KEYS`].
    fn set(&mut self, key: &str, value: &Expr) -> syn::Result<()> {
        match key {
            "initial" => self.initial = Some(value::duration(key, value)?),
            "factor" => {
                let factor = value::number(key, value, 1.0..=f64::MAX, "at least 1.0")?;
                self.factor = Some(factor);
            }
            "max" => self.max = Some(value::duration(key, value)?),
            "jitter" => {
                let jitter = value::number(key, value, 0.0..=1.0, "0.0 to 1.0")?;
                self.jitter = Some(jitter);
            }
            _ => unreachable!("`Keys` let an unknown key through"),
        }
        Ok(())
    }
}

/// Unknown and repeated keys are errors.
struct Keys {
    known: &'static [&'static str],
    seen: Vec<Ident>,
    repeated: Vec<Ident>,
}

impl Keys {
    fn new(known: &'static [&'static str]) -> Self {
        Self { known, seen: Vec::new(), repeated: Vec::new() }
    }

    /// An unknown key is an immediate error.
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

    /// Called last, so that errors in values come first.
    fn report(self, errors: &mut Errors) {
        for key in self.repeated {
            errors.push(syn::Error::new(key.span(), format!("`{key}` is given twice; keep one")));
        }
    }
}
