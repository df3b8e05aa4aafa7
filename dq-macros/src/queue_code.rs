//! `#[derive(QueueCode)]`: an enum whose variants are codes.

use std::collections::HashMap;

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Data, DataEnum, DeriveInput, Expr, Fields, Ident, LitStr, Path, Variant, parse_quote};

use crate::errors::Errors;
use crate::value;

const ATTRIBUTE: &str = "queue_code";

pub(crate) fn expand(input: TokenStream) -> TokenStream {
    syn::parse2(input)
        .and_then(|input| derive(&input))
        .unwrap_or_else(syn::Error::into_compile_error)
}

fn derive(input: &DeriveInput) -> syn::Result<TokenStream> {
    let Data::Enum(data) = &input.data else {
        return Err(syn::Error::new(
            input.ident.span(),
            "`QueueCode` can be derived only for an enum; for a single code, define a constant: \
             `const CODE: &str = \"ORDER_TIMEOUT\";`",
        ));
    };
    let mut errors = Errors::default();
    let options = errors.keep(Options::of(input)).unwrap_or_default();
    let codes = codes(data, options.case, &mut errors);
    errors.finish()?;

    let krate = options.krate.unwrap_or_else(|| parse_quote!(::dq));
    let private = quote!(#krate::__private);
    let name = &input.ident;
    let (impl_generics, type_generics, clause) = input.generics.split_for_impl();
    let arms = codes
        .iter()
        .map(|(variant, code)| quote_spanned!(variant.span()=> Self::#variant => #code,));
    let body = if codes.is_empty() {
        quote!(match *self {})
    } else {
        quote!(#private::Cow::Borrowed(match self { #(#arms)* }))
    };
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics #private::QueueCode for #name #type_generics #clause {
            fn code(&self) -> #private::Cow<'static, #private::str> {
                #body
            }
        }
    })
}

/// Returns the variants with their codes; adds invalid and repeated codes to `errors`.
fn codes<'a>(data: &'a DataEnum, case: Case, errors: &mut Errors) -> Vec<(&'a Ident, LitStr)> {
    let mut variant_by_code: HashMap<String, &Ident> = HashMap::new();
    let mut codes = Vec::new();
    for variant in &data.variants {
        if !matches!(variant.fields, Fields::Unit) {
            errors.push(syn::Error::new(
                variant.fields.span(),
                format!(
                    "a code cannot depend on fields; remove the fields of `{}` and put them in \
                     the payload",
                    variant.ident
                ),
            ));
            continue;
        }
        let Some(code) = errors.keep(code(variant, case)) else {
            continue;
        };
        match variant_by_code.get(&code.value()) {
            Some(first) => errors.push(syn::Error::new(
                code.span(),
                format!(
                    "`{}` has the code {:?} already; give `{}` another with \
                     `#[queue_code(\"…\")]`",
                    first,
                    code.value(),
                    variant.ident
                ),
            )),
            None => {
                variant_by_code.insert(code.value(), &variant.ident);
            }
        }
        codes.push((&variant.ident, code));
    }
    codes
}

/// The attribute's string, or the name in the enum's `rename_all` case.
fn code(variant: &Variant, case: Case) -> syn::Result<LitStr> {
    let mut given: Option<LitStr> = None;
    for attribute in &variant.attrs {
        if !attribute.path().is_ident(ATTRIBUTE) {
            continue;
        }
        let value = attribute.parse_args_with(value::expression)?;
        let text = value::string(&value, "#[queue_code(\"ORDER_TIMEOUT\")]")?;
        value::check_code(text)?;
        if given.replace(text.clone()).is_some() {
            return Err(syn::Error::new_spanned(
                attribute,
                format!("`{}` has two codes; keep one", variant.ident),
            ));
        }
    }
    if let Some(given) = given {
        return Ok(given);
    }
    let name = LitStr::new(&case.apply(&variant.ident.unraw().to_string()), variant.ident.span());
    value::check_code(&name)?;
    Ok(name)
}

#[derive(Default)]
struct Options {
    case: Case,
    krate: Option<Path>,
}

impl Options {
    fn of(input: &DeriveInput) -> syn::Result<Self> {
        let mut options = Self::default();
        for attribute in &input.attrs {
            if !attribute.path().is_ident(ATTRIBUTE) {
                continue;
            }
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("rename_all") {
                    let value = value::expression(meta.value()?)?;
                    options.case = Case::named(&value)?;
                } else if meta.path.is_ident("crate") {
                    let value = value::expression(meta.value()?)?;
                    options.krate = Some(value::crate_path(&value)?);
                } else {
                    return Err(meta.error("unknown key; expected one of: rename_all, crate"));
                }
                Ok(())
            })?;
        }
        Ok(options)
    }
}

#[derive(Default, Clone, Copy)]
enum Case {
    #[default]
    ScreamingSnake,
    Snake,
    Kebab,
    Pascal,
}

impl Case {
    const ALL: [(&'static str, Self); 4] = [
        ("SCREAMING_SNAKE_CASE", Self::ScreamingSnake),
        ("snake_case", Self::Snake),
        ("kebab-case", Self::Kebab),
        ("PascalCase", Self::Pascal),
    ];

    fn named(value: &Expr) -> syn::Result<Self> {
        let text = value::string(value, "rename_all = \"SCREAMING_SNAKE_CASE\"")?;
        let found = Self::ALL.iter().find(|(name, _)| *name == text.value());
        found.map(|(_, case)| *case).ok_or_else(|| {
            let known = Self::ALL.map(|(name, _)| name).join(", ");
            syn::Error::new(text.span(), format!("unknown case; expected one of: {known}"))
        })
    }

    fn apply(self, name: &str) -> String {
        match self {
            Self::ScreamingSnake => separate_words(name, "_").to_uppercase(),
            Self::Snake => separate_words(name, "_").to_lowercase(),
            Self::Kebab => separate_words(name, "-").to_lowercase(),
            Self::Pascal => name.to_owned(),
        }
    }
}

/// `AIRecordExpired2` becomes `AI_Record_Expired2`.
fn separate_words(name: &str, separator: &str) -> String {
    let characters: Vec<char> = name.chars().collect();
    let mut words = String::with_capacity(name.len() + 8);
    for (index, &character) in characters.iter().enumerate() {
        if character == '_' {
            words.push_str(separator);
            continue;
        }
        let before = index.checked_sub(1).map(|before| characters[before]);
        let after = characters.get(index + 1);
        let begins_word = character.is_uppercase()
            && before.is_some_and(|before| {
                // An abbreviation's last capital may begin a word: `HTTPServer`.
                let ends_abbreviation = after.is_some_and(|after| after.is_lowercase());
                before != '_' && (!before.is_uppercase() || ends_abbreviation)
            });
        if begins_word {
            words.push_str(separator);
        }
        words.push(character);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variant_names_are_converted_to_codes() {
        for (name, code) in [
            ("OrderTimeout", "ORDER_TIMEOUT"),
            ("AiQueueRecordExpired", "AI_QUEUE_RECORD_EXPIRED"),
            ("AIQueueRecordExpired", "AI_QUEUE_RECORD_EXPIRED"),
            ("SendSMS", "SEND_SMS"),
            ("V2Order", "V2_ORDER"),
            ("Order2", "ORDER2"),
            ("X", "X"),
            ("ORDER_TIMEOUT", "ORDER_TIMEOUT"),
            ("Order_Timeout", "ORDER_TIMEOUT"),
            ("ÜberFällig", "ÜBER_FÄLLIG"),
        ] {
            assert_eq!(Case::ScreamingSnake.apply(name), code, "{name}");
        }
        assert_eq!(Case::Snake.apply("OrderTimeout"), "order_timeout");
        assert_eq!(Case::Kebab.apply("Order_TimeOut"), "order-time-out");
        assert_eq!(Case::Pascal.apply("OrderTimeout"), "OrderTimeout");
    }
}
