//! Parses the annotated function.

use proc_macro2::Span;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    Attribute, FnArg, Ident, ItemFn, Meta, PatType, ReturnType, Signature, Token, Type, Visibility,
};

use crate::errors::Errors;

/// Types that are extractors even as the last argument, by the last segment of their path.
const EXTRACTORS: &[&str] = &["JobContext", "State", "RawPayload"];

pub(super) struct Function {
    pub(super) name: Ident,
    pub(super) visibility: Visibility,
    /// The function's `#[cfg]` attributes, which also apply to generated items.
    pub(super) cfgs: Vec<Attribute>,
    /// Whether the function is deprecated; the generated call must then allow it.
    pub(super) deprecated: bool,
    pub(super) extractors: Vec<Type>,
    pub(super) payload: Option<Type>,
    /// The return type; `None` also if it cannot be named outside the signature.
    pub(super) return_type: Option<Type>,
}

impl Function {
    /// Checks the function and reads its arguments. Removes `#[extract]` from them.
    pub(super) fn new(item: &mut ItemFn) -> syn::Result<Self> {
        let mut errors = Errors::default();
        check_signature(&item.sig, &mut errors);
        let (extractors, payload) = arguments(&mut item.sig.inputs, &mut errors);
        errors.finish()?;
        let attributes =
            |name| item.attrs.iter().filter(move |attribute| attribute.path().is_ident(name));
        Ok(Self {
            name: item.sig.ident.clone(),
            visibility: item.vis.clone(),
            cfgs: attributes("cfg").cloned().collect(),
            deprecated: attributes("deprecated").next().is_some(),
            extractors,
            payload,
            return_type: match &item.sig.output {
                ReturnType::Type(_, ty) if !matches!(**ty, Type::ImplTrait(_)) => {
                    Some((**ty).clone())
                }
                _ => None,
            },
        })
    }
}

/// Separate from [`Function::new`] because the queue can still be generated if only this check
/// fails.
pub(super) fn check_asyncness(signature: &Signature, blocking: bool) -> syn::Result<()> {
    match (blocking, &signature.asyncness) {
        (false, None) => Err(syn::Error::new(
            signature.fn_token.span,
            "a handler is an `async fn`; for one that blocks its thread write \
             `#[delay_handler(CODE, blocking)]`",
        )),
        (true, Some(token)) => Err(syn::Error::new(
            token.span,
            "a `blocking` handler is a plain `fn`; drop `async`, or drop `blocking`",
        )),
        _ => Ok(()),
    }
}

fn check_signature(signature: &Signature, errors: &mut Errors) {
    let mut refuse = |span: Span, message: &str| errors.push(syn::Error::new(span, message));
    if let Some(token) = &signature.constness {
        refuse(token.span, "a handler cannot be a `const fn`; drop `const`");
    }
    if let Some(token) = &signature.unsafety {
        refuse(
            token.span,
            "a handler cannot be an `unsafe fn`: the runner cannot uphold its safety conditions",
        );
    }
    if let Some(abi) = &signature.abi {
        refuse(abi.span(), "a handler is called from Rust; drop `extern`");
    }
    if let Some(variadic) = &signature.variadic {
        refuse(variadic.span(), "a handler cannot be variadic");
    }
    let generics = &signature.generics;
    if let Some(first) = generics.params.first() {
        refuse(
            first.span(),
            "a handler cannot be generic: a queue has one handler with one payload; \
             write a handler for each type and let them call the generic function",
        );
    } else if let Some(clause) = &generics.where_clause {
        refuse(clause.span(), "a handler cannot have a `where` clause; drop it");
    }
}

/// Returns the extractors and the payload. Removes `#[extract]` from the arguments.
fn arguments(
    inputs: &mut Punctuated<FnArg, Token![,]>,
    errors: &mut Errors,
) -> (Vec<Type>, Option<Type>) {
    let mut extractors = Vec::new();
    let mut payload = None;
    let last = inputs.len().saturating_sub(1);
    for (index, input) in inputs.iter_mut().enumerate() {
        let argument = match input {
            FnArg::Typed(argument) => argument,
            FnArg::Receiver(receiver) => {
                errors.push(syn::Error::new(
                    receiver.span(),
                    "a handler has no `self`; for an object implement `dq::DelayHandler` and add it \
                     with `runner.handler(object)`",
                ));
                continue;
            }
        };
        let is_marked = take_extract_mark(argument, errors);
        check_type(&argument.ty, errors);
        let ty = (*argument.ty).clone();
        if index < last || is_marked || is_extractor(&ty) {
            extractors.push(ty);
        } else {
            payload = Some(ty);
        }
    }
    (extractors, payload)
}

/// Removes `#[extract]`; returns whether it was present.
fn take_extract_mark(argument: &mut PatType, errors: &mut Errors) -> bool {
    let mut is_marked = false;
    for attribute in &argument.attrs {
        if attribute.path().is_ident("extract") {
            is_marked = true;
            if !matches!(attribute.meta, Meta::Path(_)) {
                errors.push(syn::Error::new_spanned(
                    attribute,
                    "write `#[extract]` without arguments",
                ));
            }
        } else if attribute.path().is_ident("cfg") {
            errors.push(syn::Error::new_spanned(
                attribute,
                "arguments cannot depend on a `#[cfg]`; write two functions, each with its own",
            ));
        }
    }
    argument.attrs.retain(|attribute| !attribute.path().is_ident("extract"));
    is_marked
}

fn check_type(ty: &Type, errors: &mut Errors) {
    match ty {
        Type::Reference(reference) => errors.push(syn::Error::new_spanned(
            reference,
            "a handler owns its arguments; remove the `&`, and write `String` for `&str`",
        )),
        Type::ImplTrait(generic) => errors.push(syn::Error::new_spanned(
            generic,
            "a handler cannot be generic; write the type itself",
        )),
        Type::Paren(inner) => check_type(&inner.elem, errors),
        Type::Group(inner) => check_type(&inner.elem, errors),
        _ => {}
    }
}

fn is_extractor(ty: &Type) -> bool {
    match ty {
        Type::Path(path) => {
            path.path.segments.last().is_some_and(|segment| {
                EXTRACTORS.iter().any(|extractor| segment.ident == extractor)
            })
        }
        Type::Paren(inner) => is_extractor(&inner.elem),
        Type::Group(inner) => is_extractor(&inner.elem),
        _ => false,
    }
}
