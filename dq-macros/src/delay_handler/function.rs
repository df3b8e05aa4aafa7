//! What the annotated function looks like.

use proc_macro2::Span;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    Attribute, FnArg, Ident, ItemFn, Meta, PatType, Path, ReturnType, Signature, Token, Type,
    Visibility,
};

use crate::errors::Errors;

/// Types that are extractors wherever they stand, by the last word of their path.
const EXTRACTORS: &[&str] = &["JobContext", "State", "RawPayload"];

/// The parts that the generated code is made from.
pub(super) struct Function {
    pub(super) name: Ident,
    pub(super) visibility: Visibility,
    /// `#[cfg]`s, which hold for the generated items too.
    pub(super) conditions: Vec<Attribute>,
    /// Whether calling it is a warning, which is not for the generated call.
    pub(super) deprecated: bool,
    /// Types of the arguments before the payload.
    pub(super) extractors: Vec<Type>,
    pub(super) payload: Option<Type>,
    /// `None` for no type or for one that cannot be named elsewhere.
    pub(super) returned: Option<Type>,
}

impl Function {
    /// Reads a function and takes `#[extract]` off its arguments. `blocking` is what the attribute
    /// says, `None` if it could not be read.
    pub(super) fn new(item: &mut ItemFn, blocking: Option<bool>) -> syn::Result<Self> {
        let mut errors = Errors::default();
        check_signature(&item.sig, blocking, &mut errors);
        let (extractors, payload) = arguments(&mut item.sig.inputs, &mut errors);
        errors.finish()?;
        let marked =
            |name| item.attrs.iter().filter(move |attribute| attribute.path().is_ident(name));
        Ok(Self {
            name: item.sig.ident.clone(),
            visibility: item.vis.clone(),
            conditions: marked("cfg").cloned().collect(),
            deprecated: marked("deprecated").next().is_some(),
            extractors,
            payload,
            returned: match &item.sig.output {
                ReturnType::Type(_, returned) if is_nameable(returned) => {
                    Some((**returned).clone())
                }
                _ => None,
            },
        })
    }
}

fn check_signature(signature: &Signature, blocking: Option<bool>, errors: &mut Errors) {
    let mut refuse = |span: Span, message: &str| errors.push(syn::Error::new(span, message));
    match (blocking, &signature.asyncness) {
        (Some(false), None) => refuse(
            signature.fn_token.span,
            "a handler is an `async fn`; for one that blocks its thread write \
             `#[delay_handler(CODE, blocking)]`",
        ),
        (Some(true), Some(token)) => refuse(
            token.span,
            "a `blocking` handler is a plain `fn`; drop `async`, or drop `blocking`",
        ),
        _ => {}
    }
    if let Some(token) = &signature.constness {
        refuse(token.span, "a handler cannot be a `const fn`; drop `const`");
    }
    if let Some(token) = &signature.unsafety {
        refuse(
            token.span,
            "a handler cannot be an `unsafe fn`: the runner knows nothing of its conditions",
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

/// The types of the extractors and that of the payload.
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
                    "a handler has no `self`; for an object with state implement \
                     `dq::DelayHandler` and hand it to the runner with `runner.handler(object)`",
                ));
                continue;
            }
        };
        let marked = take_mark(argument, errors);
        check_type(&argument.ty, errors);
        let ty = (*argument.ty).clone();
        if index < last || marked || is_extractor(&ty) {
            extractors.push(ty);
        } else {
            payload = Some(ty);
        }
    }
    (extractors, payload)
}

/// Takes `#[extract]` off and says whether it was there.
fn take_mark(argument: &mut PatType, errors: &mut Errors) -> bool {
    let mut marked = false;
    for attribute in &argument.attrs {
        if attribute.path().is_ident("extract") {
            marked = true;
            if !matches!(attribute.meta, Meta::Path(_)) {
                errors.push(syn::Error::new_spanned(
                    attribute,
                    "write `#[extract]` alone; it takes nothing",
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
    marked
}

fn check_type(ty: &Type, errors: &mut Errors) {
    match ty {
        Type::Reference(reference) => errors.push(syn::Error::new_spanned(
            reference,
            "a handler owns its arguments, there is nothing to borrow from; \
             drop the `&`, and write `String` for `&str`",
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
        Type::Path(path) => last_word(&path.path)
            .is_some_and(|word| EXTRACTORS.iter().any(|extractor| word == extractor)),
        Type::Paren(inner) => is_extractor(&inner.elem),
        Type::Group(inner) => is_extractor(&inner.elem),
        _ => false,
    }
}

fn last_word(path: &Path) -> Option<&Ident> {
    path.segments.last().map(|segment| &segment.ident)
}

/// Whether a type can be written outside the signature: `impl Trait` means another type there.
fn is_nameable(ty: &Type) -> bool {
    !matches!(ty, Type::ImplTrait(_))
}
