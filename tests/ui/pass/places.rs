//! Handlers in modules, functions and macros, with every visibility, with `#[cfg]` and other
//! attributes.

mod outer {
    pub mod inner {
        #[dq::delay_handler("INNER")]
        pub(crate) async fn handler() {}

        #[dq::delay_handler("RESTRICTED")]
        pub(in crate::outer) async fn restricted() {}
    }

    pub fn name() -> &'static str {
        <inner::restricted as dq::HandlerFn>::NAME
    }
}

#[cfg(any())]
#[dq::delay_handler("ABSENT")]
async fn absent(_: DoesNotExist) {}

#[dq::delay_handler("ABSENT_TOO")]
#[cfg(any())]
async fn absent_too(_: DoesNotExist) {}

#[dq::delay_handler("PRESENT")]
#[cfg(all())]
#[tracing::instrument(skip(order))]
async fn instrumented(ctx: dq::JobContext, order: u64) -> Result<(), std::io::Error> {
    let _ = (ctx, order);
    Ok(())
}

#[tracing::instrument]
#[dq::delay_handler("INSTRUMENTED_BEFORE")]
async fn instrumented_before(order: u64) {}

macro_rules! handler {
    ($name:ident, $code:literal, $payload:ty, $attempts:literal) => {
        #[dq::delay_handler($code, max_attempts = $attempts)]
        async fn $name(payload: $payload) -> dq::Result<()> {
            let _ = payload;
            Ok(())
        }
    };
}

handler!(from_macro, "FROM_MACRO", Vec<u64>, 3);

macro_rules! escalation {
    ($name:ident, $code:literal, $old:literal, $step:literal) => {
        #[dq::delay_handler($code, aliases = [$old], escalate = [$step, "1h"])]
        async fn $name() {}
    };
}

escalation!(escalated, "ESCALATED", "ESCALATED_OLD", "15m");

fn main() {
    #[derive(serde::Deserialize)]
    struct Local;

    #[dq::delay_handler("LOCAL")]
    async fn handler(_local: Local) {}

    assert!(<outer::inner::handler as dq::HandlerFn>::NAME.ends_with("::outer::inner::handler"));
    assert!(outer::name().ends_with("::outer::inner::restricted"));
    let registry = dq::Registry::linked().unwrap();
    for code in ["INNER", "RESTRICTED", "PRESENT", "INSTRUMENTED_BEFORE", "FROM_MACRO", "LOCAL"] {
        assert!(registry.get(code).is_some(), "{code}");
    }
    assert!(registry.get("ABSENT").is_none());
    assert!(registry.get("ABSENT_TOO").is_none());
    let _ = <handler as dq::Queue>::code();
}
