//! Types that the compiler refuses.

mod codes {
    use dq::delay_handler;

    struct Orders;

    #[delay_handler(Orders)]
    async fn handler() {}
}

mod extractors {
    use dq::{BoxError, FromJob, JobContext, State, delay_handler};

    struct Other;

    struct Tenant;

    impl FromJob for Tenant {
        async fn from_job(_: &JobContext) -> Result<Self, BoxError> {
            Ok(Tenant)
        }
    }

    #[derive(serde::Deserialize)]
    struct Order;

    #[delay_handler("A")]
    async fn extract_on_other_type(#[extract] _other: Other) {}

    #[delay_handler("B")]
    async fn extractor_last_without_extract(_tenant: Tenant) {}

    #[delay_handler("C")]
    async fn not_an_extractor(_other: Other, _order: Order) {}

    #[delay_handler("D")]
    async fn payload_not_deserialize(_other: Other) {}

    #[delay_handler("E")]
    async fn payload_not_last(_order: Order, _ctx: JobContext) {}

    #[delay_handler("F")]
    async fn state_not_clone(State(_other): State<Other>) {}
}

mod results {
    use dq::delay_handler;

    #[delay_handler("ORDER_TIMEOUT")]
    async fn returns_unsupported_type() -> u32 {
        42
    }

    #[delay_handler("ORDER_TIMEOUT")]
    async fn returns_result_of_unsupported_type() -> dq::Result<u32> {
        Ok(42)
    }

    struct Trouble;

    #[delay_handler("ORDER_TIMEOUT")]
    async fn returns_result_without_error_type() -> Result<(), Trouble> {
        Err(Trouble)
    }

    #[delay_handler("ORDER_TIMEOUT", blocking)]
    fn blocking_returns_unsupported_type() -> u32 {
        42
    }
}

/// Jobs from a handler's schedule have the default payload.
mod schedule_payload {
    use dq::prelude::*;

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Region(String);

    #[delay_handler("SYNC", every = "90s")]
    async fn sync(region: Region) {
        let _ = region.0;
    }
}

mod guards {
    use dq::delay_handler;

    async fn is_open(_order: u64) -> bool {
        true
    }

    async fn counts(_order: u64) -> usize {
        1
    }

    fn is_not_async(_order: u64) -> bool {
        true
    }

    #[delay_handler("A", guard = is_open)]
    async fn other_arguments(_order: String) {}

    #[delay_handler("B", guard = counts)]
    async fn other_result(_order: u64) {}

    #[delay_handler("C", guard = is_closed)]
    async fn no_such_guard(_order: u64) {}

    #[delay_handler("D", guard = is_not_async)]
    async fn guard_is_not_async(_order: u64) {}
}

/// The likeliest mistake: importing the web framework's `State`.
mod web_framework {
    use dq::delay_handler;

    mod axum {
        pub mod extract {
            #[derive(Clone)]
            pub struct State<T>(pub T);
        }
    }

    use self::axum::extract::State;

    #[derive(Clone)]
    struct Db;

    #[derive(serde::Deserialize)]
    struct Order;

    #[delay_handler("ORDER_TIMEOUT")]
    async fn order_timeout(State(_db): State<Db>, _order: Order) {}

    #[delay_handler("NIGHTLY")]
    async fn nightly(State(_db): State<Db>) {}
}

mod client {
    use dq::prelude::*;

    dq::queue!(ORDER_TIMEOUT: u64);

    #[derive(serde::Serialize)]
    struct NoQueue;

    fn snooze_without_unit() -> Outcome {
        Outcome::snooze(60)
    }

    async fn calls(dq: Dq) {
        let _ = dq.reschedule::<ORDER_TIMEOUT>("order-1", 60).await;
        let _ = dq.schedule::<ORDER_TIMEOUT>(1).at(15.minutes()).await;
        let _ = dq.schedule::<ORDER_TIMEOUT>(1).key(1.5).await;
        let _ = dq.schedule::<NoQueue>(NoQueue);
        let _ = dq.schedule::<ORDER_TIMEOUT>(NoQueue);
    }
}

fn main() {}
