//! `#[delay_handler]`: generates a queue, a handler and a registration for a function.

mod arguments;
mod function;
mod generate;

use proc_macro2::TokenStream;
use quote::quote;
use syn::ItemFn;

use self::arguments::Arguments;
use self::function::Function;

/// Expands the macro.
pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let Ok(mut item_fn) = syn::parse2::<ItemFn>(item.clone()) else {
        return not_a_function(&item);
    };
    // Both are parsed before an error is returned, so that the errors of both are reported
    // together.
    let arguments = syn::parse2::<Arguments>(attribute);
    let blocking = arguments.as_ref().map(|arguments| arguments.blocking).ok();
    let function = Function::new(&mut item_fn, blocking);
    let generated = match (arguments, function) {
        (Ok(arguments), Ok(function)) => generate::generate(&arguments, &function),
        (Err(mut error), Err(other)) => {
            error.combine(other);
            error.to_compile_error()
        }
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => error.to_compile_error(),
    };
    // The function is always emitted, so that its callers cause no further errors.
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
