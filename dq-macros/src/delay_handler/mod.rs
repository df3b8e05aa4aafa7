//! `#[delay_handler]`: generates a queue, a handler and a registration for a function.

mod arguments;
mod function;
mod generate;
mod policies;
mod rate;
mod schedule;
mod slots;

use proc_macro2::TokenStream;
use quote::quote;
use syn::ItemFn;
use syn::parse::{ParseStream, Parser};

use self::arguments::Arguments;
use self::function::Function;
use crate::errors::Errors;

pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let Ok(mut item_fn) = syn::parse2::<ItemFn>(item.clone()) else {
        return not_a_function(&item);
    };
    // Arguments and function are parsed before either fails, so that their errors are reported
    // together.
    let mut errors = Errors::default();
    let private_path = generate::private_path(arguments::crate_path(attribute.clone()));
    let parse = |input: ParseStream<'_>| Arguments::parse(input, &private_path);
    let arguments = errors.keep(parse.parse2(attribute));
    if let Some(arguments) = &arguments {
        errors.keep(function::check_asyncness(&item_fn.sig, arguments.blocking));
    }
    // `&mut`, because this removes `#[extract]` from the emitted function.
    let function = errors.keep(Function::new(&mut item_fn));
    if let (Some(arguments), Some(function)) = (&arguments, &function) {
        errors.keep(arguments.policies.check_payload(function.payload.is_some()));
    }
    let generated = match (errors.finish(), arguments, function) {
        (Ok(()), Some(arguments), Some(function)) => {
            generate::generate(Some(&arguments), &function, &private_path)
        }
        (Ok(()), ..) => unreachable!("a missing part is an error"),
        (Err(error), _, function) => {
            let error = error.to_compile_error();
            let queue = function.map(|function| generate::generate(None, &function, &private_path));
            quote!(#error #queue)
        }
    };
    // Always emits the function, and its queue where possible, so that calls to the function and to
    // `schedule::<function>` cause no more errors.
    quote!(#item_fn #generated)
}

fn not_a_function(item: &TokenStream) -> TokenStream {
    let error = syn::Error::new(
        proc_macro2::Span::call_site(),
        "`#[delay_handler]` applies to a function: `async fn name(payload: Payload)`; \
         for an object implement `dq::DelayHandler`",
    )
    .to_compile_error();
    quote!(#item #error)
}
