//! A module that redefines the prelude's names.

#![allow(dead_code, unused_macros, nonstandard_style)]

mod shadowed {
    pub struct Result;
    pub struct Option;
    pub struct String;
    pub struct Vec;
    pub struct Box;
    pub struct Cow;
    pub struct Duration;
    pub struct Backoff;
    pub struct BackoffSettings;
    pub struct QueueSettings;
    pub struct str;
    pub struct u32;
    pub struct usize;
    pub struct f64;
    pub fn Ok() {}
    pub fn Err() {}
    pub fn Some() {}
    pub const None: () = ();
    pub trait Default {}
    pub trait Into {}
    pub trait Send {}
    pub trait Future {}
    pub trait Debug {}
    pub trait Clone {}
    pub trait Copy {}
    pub trait Queue {}
    pub trait HandlerFn {}
    pub trait FromJob {}
    pub mod std {}
    pub mod core {}
    pub mod alloc {}
    pub mod dq {}
    pub mod inventory {}
    pub mod tokio {}

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
