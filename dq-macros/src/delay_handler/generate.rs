//! Generates the code beside the function.
//!
//! All paths are absolute and go through `__private`, because the user's module may define its own
//! `Result` or `std`. Local names have the macro's hygiene.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse_quote;
use syn::spanned::Spanned;
use syn::{Ident, Path, Type};

use super::arguments::{Arguments, Code};
use super::function::Function;
use super::policies::Policies;
use crate::value::duration_tokens;

/// Generates the queue and the handler.
///
/// Without arguments, for a function with errors, only the queue, so that `schedule::<function>`
/// causes no more errors. This code never runs.
pub(super) fn generate(
    arguments: Option<&Arguments>,
    function: &Function,
    private: &TokenStream,
) -> TokenStream {
    let Function { name, cfgs, .. } = function;
    let queue_type = queue_type(function);
    let code = match arguments {
        Some(arguments) => code(&arguments.code, private),
        None => quote!(::core::unreachable!()),
    };
    let queue = queue(code, arguments.map(|arguments| &arguments.policies), function, private);
    let handler = arguments.map(|arguments| {
        let handler = handler(arguments, function, private);
        quote!(#handler #private::inventory::submit! { #private::Registration::of::<#name>() })
    });
    quote! {
        #queue_type

        #(#cfgs)*
        const _: () = {
            #queue
            #handler
        };
    }
}

/// The path of the items that generated code uses.
pub(super) fn private_path(krate: Option<Path>) -> TokenStream {
    let krate = krate.unwrap_or_else(|| parse_quote!(::dq));
    quote!(#krate::__private)
}

fn queue_type(function: &Function) -> TokenStream {
    let Function { name, visibility, cfgs, .. } = function;
    let docs = format!("The queue of the handler [`{name}`](fn@{name}), for scheduling its jobs.");
    quote! {
        #(#cfgs)*
        #[doc = #docs]
        #[allow(non_camel_case_types)]
        #[derive(::core::fmt::Debug, ::core::clone::Clone, ::core::marker::Copy)]
        #visibility struct #name {}
    }
}

fn code(code: &Code, private: &TokenStream) -> TokenStream {
    match code {
        Code::Literal(code) => quote!(#private::Cow::Borrowed(#code)),
        Code::Expression(code) => {
            let span = code.span();
            let private = respan(private.clone(), &|_| span);
            quote_spanned!(span=> #private::QueueCode::code(&#code))
        }
    }
}

/// Implements `Queue`; `code` is the body of its function `code`.
fn queue(
    code: TokenStream,
    policies: Option<&Policies>,
    function: &Function,
    private: &TokenStream,
) -> TokenStream {
    let name = &function.name;
    let steps = policies.filter(|policies| !policies.steps.is_empty()).map(|policies| {
        let steps = policies.steps.iter().map(|step| duration_tokens(*step, private));
        quote!(const STEPS: &'static [#private::Duration] = &[#(#steps),*];)
    });
    let version = policies.and_then(|policies| policies.version).map(|(version, _)| {
        quote!(
            const VERSION: #private::Option<#private::u32> = #private::Option::Some(#version);
        )
    });
    let payload = match &function.payload {
        Some(payload) => {
            let Pinned { ty, span, .. } = Pinned::new(payload, private);
            quote_spanned!(span=> type Payload = #ty;)
        }
        None => quote!(
            type Payload = ();
        ),
    };
    quote! {
        impl #private::Queue for #name {
            #payload
            #steps
            #version

            fn code() -> #private::Cow<'static, #private::str> {
                #code
            }
        }
    }
}

fn handler(arguments: &Arguments, function: &Function, private: &TokenStream) -> TokenStream {
    let name = &function.name;
    let text = name.unraw().to_string();
    // With the function's span, `line!` gives its line and not the attribute's.
    let location =
        quote_spanned!(name.span()=> ::core::concat!(::core::file!(), ":", ::core::line!()));
    let settings = &arguments.settings;
    let schedule = arguments.schedule.as_ref().map(|it| schedule(it, function, private));
    let requires = requires(arguments, function, private);
    let decode = decode(arguments, function, private);
    let call = call(arguments, function, private);
    let aliases = &arguments.policies.aliases;
    let aliases = (!aliases.is_empty())
        .then(|| quote!(const ALIASES: &'static [&'static #private::str] = &[#(#aliases),*];));
    let escalate_from = arguments.policies.escalate_from.map(|(from, _)| {
        let from = format_ident!("{from}");
        quote!(const ESCALATE_FROM: #private::EscalateFrom = #private::EscalateFrom::#from;)
    });
    let allow_deprecated = function.deprecated.then(|| quote!(#[allow(deprecated)]));
    quote! {
        impl #private::HandlerFn for #name {
            const NAME: &'static #private::str =
                ::core::concat!(::core::module_path!(), "::", #text);
            const LOCATION: &'static #private::str = #location;
            #aliases
            #escalate_from

            fn settings() -> #private::QueueSettings {
                #settings
            }

            #schedule

            #requires

            #decode

            #allow_deprecated
            #call
        }
    }
}

fn schedule(settings: &TokenStream, function: &Function, private: &TokenStream) -> TokenStream {
    let payload = match &function.payload {
        Some(payload) => {
            let Pinned { ty, span, private } = Pinned::new(payload, private);
            quote_spanned!(span=> #private::adapter::schedule_payload::<#ty>())
        }
        None => quote!(#private::adapter::schedule_payload::<()>()),
    };
    let json = local("payload");
    quote! {
        fn schedule() -> #private::DqResult<::core::option::Option<#private::ScheduleSettings>> {
            let #json = #payload?;
            #settings.payload(&#json).map(::core::option::Option::Some)
        }
    }
}

fn requires(arguments: &Arguments, function: &Function, private: &TokenStream) -> TokenStream {
    let requirements = local("requirements");
    let each = function.extractors.iter().map(|ty| {
        let Pinned { ty, span, private } = Pinned::new(ty, private);
        quote_spanned!(span=> <#ty as #private::FromJob>::requires(#requirements);)
    });
    let of_guard = arguments.policies.guard.as_ref().map(|guard| {
        let (name, span) = (&function.name, guard.span());
        let private = respan(private.clone(), &|_| span);
        let payload = quote!(<#name as #private::Queue>::Payload);
        quote_spanned!(span=>
            #private::adapter::guard_requires::<_, _, #payload>(#guard, #requirements);
        )
    });
    let is_used = !function.extractors.is_empty() || of_guard.is_some();
    let argument = if is_used { quote!(#requirements) } else { quote!(_) };
    quote! {
        fn requires(#argument: &mut #private::Requirements) {
            #(#each)*
            #of_guard
        }
    }
}

/// Generates the function that decodes the payload, and upgrades an older one.
fn decode(arguments: &Arguments, function: &Function, private: &TokenStream) -> TokenStream {
    let job = local("job");
    let policies = &arguments.policies;
    let (argument, body, payload) = match &function.payload {
        None => (quote!(_), quote!(#private::Result::Ok(())), quote!(())),
        Some(ty) => {
            let pinned = Pinned::new(ty, private);
            let (ty, span, private) = (&pinned.ty, pinned.span, &pinned.private);
            let current = quote_spanned!(span=> #private::adapter::payload::<#ty>(#job));
            let body = match policies.version {
                None => current,
                Some((version, _)) => {
                    let arms = upgrades(policies, &job, private);
                    let oldest = policies.oldest_version();
                    quote! {
                        match #private::adapter::version(#job)? {
                            #version => #current,
                            #(#arms)*
                            other => #private::adapter::unreadable(other, #oldest, #version),
                        }
                    }
                }
            };
            (quote!(#job), body, quote!(#ty))
        }
    };
    quote! {
        fn decode(#argument: &#private::Job) -> #private::Result<#payload, #private::JobError> {
            #body
        }
    }
}

/// Returns a match arm per older version. Each arm decodes the payload and calls the upgrades in
/// order.
fn upgrades(policies: &Policies, job: &Ident, private: &TokenStream) -> Vec<TokenStream> {
    let value = local("value");
    let arms = policies.upgrades.iter().enumerate().map(|(first, (version, _))| {
        let calls = policies.upgrades[first..].iter().map(|(_, upgrade)| {
            let span = upgrade.span();
            quote_spanned! {span=>
                let #value = (&&#private::adapter::Upgraded::new(#upgrade(#value))).upgraded()?;
            }
        });
        quote! {
            #version => {
                use #private::adapter::{UpgradedResult as _, UpgradedValue as _};
                let #value = #private::adapter::payload(#job)?;
                #(#calls)*
                #private::Result::Ok(#value)
            }
        }
    });
    arms.collect()
}

fn call(arguments: &Arguments, function: &Function, private: &TokenStream) -> TokenStream {
    let Function { name, extractors, payload, .. } = function;
    let ctx = local("ctx");
    let decoded = local("payload");
    // Payload first: a job that does not decode is dead, even if an extractor would also fail.
    let decode = payload
        .as_ref()
        .map(|_| quote!(let #decoded = <#name as #private::HandlerFn>::decode(#ctx.job())?;));
    let extracted: Vec<Ident> =
        (0..extractors.len()).map(|index| local(&format!("argument_{index}"))).collect();
    let extract = extractors.iter().zip(&extracted).map(|(ty, extracted)| {
        let Pinned { ty, span, private } = Pinned::new(ty, private);
        quote_spanned! {span=>
            let #extracted = <#ty as #private::FromJob>::from_job(&#ctx)
                .await
                .map_err(#private::JobError::Failed)?;
        }
    });
    let values = extracted.iter().chain(payload.is_some().then_some(&decoded));
    let called = quote!(#name(#(#values),*));
    // The guard owns its arguments, so the handler gets its own.
    let guard = arguments.policies.guard.as_ref().map(|guard| {
        let text = guard.segments.last().map(|segment| segment.ident.unraw().to_string());
        let timeout = duration_tokens(arguments.policies.guard_timeout(), private);
        let span = guard.span();
        let pinned = respan(private.clone(), &|_| span);
        let decode = quote!(<#name as #private::HandlerFn>::decode);
        let payload = quote!(<#name as #private::Queue>::Payload);
        let ask = quote_spanned!(span=>
            #pinned::adapter::guard::<_, _, #payload>(&#ctx, #text, #timeout, #guard, #decode)
                .await?
        );
        quote! {
            if let #private::Option::Some(outcome) = #ask {
                return #private::Result::Ok(outcome);
            }
        }
    });
    let finish = finish(function, arguments.blocking.then_some(&ctx), &called, private);
    let uses_context =
        arguments.blocking || guard.is_some() || !extractors.is_empty() || payload.is_some();
    let argument = if uses_context { quote!(#ctx) } else { quote!(_) };
    // The compiler reports a future that is not `Send` at the return type's span.
    let result = respan(quote!(#private::JobResult), &|_| name.span());
    quote! {
        async fn call(#argument: #private::JobContext) -> #result {
            #guard
            #decode
            #(#extract)*
            #finish
        }
    }
}

/// Calls the function and converts its result. A blocking function runs on a thread owned by
/// `blocking_context`.
fn finish(
    function: &Function,
    blocking_context: Option<&Ident>,
    called: &TokenStream,
    private: &TokenStream,
) -> TokenStream {
    let return_type = function.return_type.clone().unwrap_or_else(|| parse_quote!(_));
    let Pinned { ty, span, private } = Pinned::new(&return_type, private);
    match blocking_context {
        Some(ctx) => {
            quote_spanned!(span=> #private::adapter::blocking::<#ty, _>(&#ctx, move || #called).await)
        }
        None => quote_spanned!(span=> #private::adapter::outcome::<#ty>(#called.await)),
    }
}

/// Makes a local name that cannot collide with the user's names.
fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// A type for a generated expression; all its tokens have one span.
///
/// The compiler reports an error once per distinct span. With a single span it reports each error
/// once, even for a type with several tokens or mixed with macro tokens.
struct Pinned {
    ty: TokenStream,
    /// Span of the last segment in the type's path, or of the whole type.
    span: Span,
    private: TokenStream,
}

impl Pinned {
    fn new(ty: &Type, private: &TokenStream) -> Self {
        let name_span = match ty {
            Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.span()),
            _ => None,
        };
        let span = name_span.unwrap_or_else(|| ty.span());
        Self {
            // `located_at` keeps the name resolution.
            ty: respan(ty.to_token_stream(), &|token| token.located_at(span)),
            span,
            private: respan(private.clone(), &|_| span),
        }
    }
}

/// Maps each token's span through `new_span`, also in groups.
fn respan(tokens: TokenStream, new_span: &impl Fn(Span) -> Span) -> TokenStream {
    let respan = |mut token: TokenTree| {
        if let TokenTree::Group(group) = &token {
            token = Group::new(group.delimiter(), respan(group.stream(), new_span)).into();
        }
        token.set_span(new_span(token.span()));
        token
    };
    tokens.into_iter().map(respan).collect()
}
