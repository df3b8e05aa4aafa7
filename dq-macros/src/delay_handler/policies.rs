//! Arguments beyond the settings: escalation, guard, versions, aliases.

use std::time::Duration;

use syn::parse::ParseStream;
use syn::spanned::Spanned;
use syn::{Expr, Ident, LitInt, LitStr, Path, Token, parenthesized};

use crate::errors::Errors;
use crate::value;

const GUARD_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Policies {
    pub(super) steps: Vec<Duration>,
    /// The variant of `EscalateFrom`, with the key's span.
    pub(super) escalate_from: Option<(&'static str, proc_macro2::Span)>,
    pub(super) guard: Option<Path>,
    /// With the key's span.
    guard_timeout: Option<(Duration, proc_macro2::Span)>,
    /// With the number's span.
    pub(super) version: Option<(u32, proc_macro2::Span)>,
    /// In ascending order, each from its version to the next.
    pub(super) upgrades: Vec<(u32, Path)>,
    pub(super) aliases: Vec<LitStr>,
    /// The span of `upgrade_from`, if given.
    upgrades_at: Option<proc_macro2::Span>,
}

impl Policies {
    pub(super) fn has(key: &str) -> bool {
        matches!(
            key,
            "escalate" | "escalate_from" | "guard" | "guard_timeout" | "version" | "aliases"
        )
    }

    pub(super) fn set(&mut self, key: &Ident, value: &Expr) -> syn::Result<()> {
        match key.to_string().as_str() {
            "escalate" => self.steps = steps(value)?,
            "escalate_from" => self.escalate_from = Some((escalate_from(value)?, key.span())),
            "guard" => self.guard = Some(guard(value)?),
            "guard_timeout" => {
                let advice = "a guard needs some time to answer";
                let timeout = value::positive("guard_timeout", value, advice)?;
                self.guard_timeout = Some((timeout, key.span()));
            }
            "version" => {
                let advice = "versions begin with 1, which jobs without a version have";
                self.version = Some((value::count("version", value, advice)?, value.span()));
            }
            "aliases" => self.aliases = aliases(value)?,
            _ => unreachable!("`has` let an unknown key through"),
        }
        Ok(())
    }

    /// `(1 = upgrade_v1, …)` after `upgrade_from`.
    pub(super) fn parse_upgrades(
        &mut self,
        key: &Ident,
        input: ParseStream<'_>,
    ) -> syn::Result<()> {
        self.upgrades_at = Some(key.span());
        if !input.peek(syn::token::Paren) {
            return Err(syn::Error::new(key.span(), "write `upgrade_from(1 = upgrade_v1)`"));
        }
        let inside;
        parenthesized!(inside in input);
        let mut errors = Errors::default();
        while !inside.is_empty() {
            let number: LitInt = inside.parse()?;
            inside.parse::<Token![=]>()?;
            let path: Path = inside.call(Path::parse_mod_style)?;
            if !inside.is_empty() {
                inside.parse::<Token![,]>()?;
            }
            let version = number.base10_parse::<u32>()?;
            if version == 0 {
                let message = "versions begin with 1, which jobs without a version have";
                errors.push(syn::Error::new(number.span(), message));
            }
            if let Some((last, _)) = self.upgrades.last()
                && Some(version) != last.checked_add(1)
            {
                errors.push(syn::Error::new(
                    number.span(),
                    format!(
                        "after version {last} comes version {}; each function upgrades to the next \
                         version, in ascending order without gaps",
                        last + 1
                    ),
                ));
            }
            self.upgrades.push((version, path));
        }
        if self.upgrades.is_empty() {
            let message = "`upgrade_from` is empty; write `upgrade_from(1 = upgrade_v1)`";
            errors.push(syn::Error::new(key.span(), message));
        }
        errors.finish()
    }

    pub(super) fn check(&self, code: Option<&LitStr>, errors: &mut Errors) {
        for (index, alias) in self.aliases.iter().enumerate() {
            let mut others = code.into_iter().chain(&self.aliases[..index]);
            if others.any(|other| other.value() == alias.value()) {
                let message = format!("the handler has the code {:?} already", alias.value());
                errors.push(syn::Error::new(alias.span(), message));
            }
        }
        if !errors.is_empty() {
            // An argument that seems to be missing may be there with a mistake.
            return;
        }
        if let (Some((_, span)), true) = (self.escalate_from, self.steps.is_empty()) {
            errors.push(syn::Error::new(
                span,
                "`escalate_from` says from when the delays of `escalate` count; add \
                 `escalate = [\"15m\", \"1h\", \"1d\"]`",
            ));
        }
        if let (Some((_, span)), None) = (self.guard_timeout, &self.guard) {
            errors.push(syn::Error::new(span, "`guard_timeout` without a `guard` does nothing"));
        }
        match (self.upgrades_at, &self.version, self.upgrades.last()) {
            (Some(span), None, _) => errors.push(syn::Error::new(
                span,
                "`upgrade_from` needs the version that it upgrades to: `version = 2`",
            )),
            (Some(_), Some((version, at)), Some((last, _)))
                if last.checked_add(1) != Some(*version) =>
            {
                errors.push(syn::Error::new(
                    *at,
                    format!(
                        "the version is {version}, and the last function of `upgrade_from` upgrades \
                         to version {}",
                        last.saturating_add(1)
                    ),
                ));
            }
            _ => {}
        }
    }

    /// Checks that there is a payload to upgrade.
    pub(super) fn check_payload(&self, has_payload: bool) -> syn::Result<()> {
        match self.upgrades_at {
            Some(span) if !has_payload => Err(syn::Error::new(
                span,
                "the handler has no payload that could be upgraded; the last argument is the payload",
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn guard_timeout(&self) -> Duration {
        self.guard_timeout.map_or(GUARD_TIMEOUT, |(timeout, _)| timeout)
    }

    pub(super) fn oldest_version(&self) -> u32 {
        match (self.upgrades.first(), self.version) {
            (Some((oldest, _)), _) => *oldest,
            (None, Some((version, _))) => version,
            (None, None) => 1,
        }
    }
}

fn steps(value: &Expr) -> syn::Result<Vec<Duration>> {
    const EXAMPLE: &str = "escalate = [\"15m\", \"1h\", \"1d\"]";
    let elements = list(value, EXAMPLE)?;
    if elements.is_empty() {
        let message = format!("an escalation without steps never runs; write {EXAMPLE}");
        return Err(syn::Error::new_spanned(value, message));
    }
    let mut errors = Errors::default();
    let mut steps = Vec::new();
    for element in &elements {
        let advice = "a step comes some time after the one before";
        steps.extend(errors.keep(value::positive("a delay of escalate", element, advice)));
    }
    errors.finish()?;
    Ok(steps)
}

fn escalate_from(value: &Expr) -> syn::Result<&'static str> {
    match value::string(value, "escalate_from = \"first_due\"")?.value().as_str() {
        "first_due" => Ok("FirstDue"),
        "step_end" => Ok("StepEnd"),
        _ => Err(syn::Error::new_spanned(
            value,
            "escalate_from must be \"first_due\", the due time of the first step, or \
             \"step_end\", the end of the step before",
        )),
    }
}

fn guard(value: &Expr) -> syn::Result<Path> {
    match value {
        Expr::Path(path) if path.qself.is_none() => Ok(path.path.clone()),
        _ => Err(syn::Error::new_spanned(
            value,
            "expected the name of an async function of extractors and the payload, like \
             guard = is_still_unpaid",
        )),
    }
}

fn aliases(value: &Expr) -> syn::Result<Vec<LitStr>> {
    let elements = list(value, "aliases = [\"OLD_CODE\"]")?;
    let mut errors = Errors::default();
    let mut aliases: Vec<LitStr> = Vec::new();
    for element in &elements {
        let alias = value::string(element, "\"OLD_CODE\"")
            .and_then(|alias| value::check_code(alias).map(|()| alias.clone()));
        aliases.extend(errors.keep(alias));
    }
    errors.finish()?;
    Ok(aliases)
}

fn list(value: &Expr, example: &str) -> syn::Result<Vec<Expr>> {
    match value {
        Expr::Array(array) => Ok(array.elems.iter().cloned().map(value::ungrouped).collect()),
        _ => Err(syn::Error::new_spanned(value, format!("expected a list, like {example}"))),
    }
}
