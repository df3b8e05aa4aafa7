//! Arguments about a runner's slots: `concurrency`, `priority`, `reserve`.

use proc_macro2::{Literal, Span, TokenStream};
use quote::quote;
use syn::spanned::Spanned;
use syn::{Expr, Ident};

use crate::errors::Errors;
use crate::value;

pub(super) const KEYS: &[&str] = &["concurrency", "priority", "reserve"];

#[derive(Default)]
pub(super) struct Slots {
    concurrency: Option<u32>,
    /// With the number's span.
    reserve: Option<(u32, Span)>,
}

impl Slots {
    /// Returns the call that sets `key` in `QueueSettings`.
    pub(super) fn set(
        &mut self,
        key: &Ident,
        value: &Expr,
        private: &TokenStream,
    ) -> syn::Result<TokenStream> {
        let name = &*key.to_string();
        if name == "priority" {
            let priority = priority(value, private)?;
            return Ok(quote!(.priority(#priority)));
        }
        let slots = if name == "reserve" {
            let slots =
                value::count(name, value, "leave it out, because no reserve is the default")?;
            self.reserve = Some((slots, value.span()));
            slots
        } else {
            let slots = value::count(name, value, "write at least 1; to stop a queue, pause it")?;
            self.concurrency = Some(slots);
            slots
        };
        // Without a suffix, because the field is a `usize` on the target machine.
        let slots = Literal::u32_unsuffixed(slots);
        Ok(quote!(.#key(#slots)))
    }

    /// Without a `concurrency` here, the runner checks, because the configuration may have one.
    pub(super) fn check(&self, errors: &mut Errors) {
        if let (Some(concurrency), Some((reserve, span))) = (self.concurrency, self.reserve)
            && reserve > concurrency
        {
            let message = format!(
                "reserve is {reserve}, but concurrency is {concurrency}; reserve fewer slots or raise the \
                 concurrency"
            );
            errors.push(syn::Error::new(span, message));
        }
    }
}

fn priority(value: &Expr, private: &TokenStream) -> syn::Result<TokenStream> {
    match value::string(value, "priority = \"high\"")?.value().as_str() {
        "high" => Ok(quote!(#private::Priority::High)),
        "normal" => Ok(quote!(#private::Priority::Normal)),
        "low" => Ok(quote!(#private::Priority::Low)),
        _ => {
            Err(syn::Error::new_spanned(value, "priority must be \"high\", \"normal\" or \"low\""))
        }
    }
}
