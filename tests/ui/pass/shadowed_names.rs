//! A module that redefines the prelude's names.

#![allow(dead_code, unused_macros, nonstandard_style)]

macro_rules! items {
    ($($kind:ident $($name:ident)*;)*) => { $($(items! { @ $kind $name })*)* };
    (@ struct_ $name:ident) => { pub struct $name; };
    (@ fn_ $name:ident) => { pub fn $name() {} };
    (@ trait_ $name:ident) => { pub trait $name {} };
    (@ mod_ $name:ident) => { pub mod $name {} };
}

mod shadowed {
    items! {
        struct_ Result Option String Vec Box Cow Duration str u32 usize f64;
        struct_ Backoff BackoffSettings QueueSettings;
        fn_ Ok Err Some;
        trait_ Default Into Send Future Debug Clone Copy Queue HandlerFn FromJob;
        mod_ std core alloc dq inventory tokio;
    }
    pub const None: () = ();

    macro_rules! concat {
        ($($anything:tt)*) => {};
    }
    macro_rules! file {
        ($($anything:tt)*) => {};
    }
    macro_rules! line {
        ($($anything:tt)*) => {};
    }

    #[derive(serde::Deserialize)]
    pub struct Payload(i64);

    #[::dq::delay_handler(
        "SHADOWED",
        max_attempts = 3,
        timeout = "none",
        lease = "5s",
        concurrency = 2,
        max_losses = 2,
        backoff(initial = "2s")
    )]
    async fn handler(ctx: ::dq::JobContext, payload: Payload) -> ::dq::Outcome {
        let (_, _) = (ctx, payload);
        ::dq::Outcome::Done
    }

    #[::dq::delay_handler("SHADOWED_BLOCKING", blocking)]
    fn blocking(_ctx: ::dq::JobContext) {}

    #[derive(::dq::QueueCode)]
    pub enum Code {
        One,
        Two,
    }
}

// Names that generated code might use for its variables.
#[dq::delay_handler("LOCAL_NAMES")]
async fn payload(ctx: dq::State<u8>, requirements: dq::State<u8>, argument_0: u8) {
    let _ = (ctx, requirements, argument_0);
}

#[dq::delay_handler("CALL")]
async fn call() {}

#[dq::delay_handler("RAW_NAME")]
async fn r#match() {}

const _CTX: u8 = 1;

fn main() {
    assert_eq!(<r#match as dq::HandlerFn>::NAME, concat!(module_path!(), "::match"));
}
