//! Mistakes in attributes and codes, which the macros report.

mod arguments {
    use dq::delay_handler;

    #[delay_handler("ORDER_TIMEOUT", blocking)]
    async fn async_and_blocking() {}

    #[delay_handler("ORDER_TIMEOUT", backoff = "1s")]
    async fn backoff_without_parentheses() {}

    #[delay_handler("ORDER_TIMEOUT", blocking = true, max_attempts = 3)]
    fn blocking_with_value() {}

    #[delay_handler]
    async fn bare() {}

    #[delay_handler("ORDER\tTIMEOUT")]
    async fn code_control_character() {}

    #[delay_handler("")]
    async fn code_empty() {}

    #[delay_handler(42)]
    async fn code_no_string() {}

    #[delay_handler(max_attempts = 3, "ORDER_TIMEOUT")]
    async fn code_not_first() {}

    #[delay_handler(
        "ORDER_TIMEOUT_ORDER_TIMEOUT_ORDER_TIMEOUT_ORDER_TIMEOUT_ORDER_TIMEOUT_ORDER_TIMEOUT_ORDER_TIMEOUT_ORDER_TIMEOUT_ORDER_TIMEOUT_ORDER_TIMEOUT_"
    )]
    async fn code_too_long() {}

    #[delay_handler("ORDER_TIMEOUT", lease = "1m", max_attempts = 3, lease = "2m")]
    async fn duplicate_key() {}

    #[delay_handler("ORDER_TIMEOUT", lease)]
    async fn key_without_value() {}

    #[delay_handler("ORDER_TIMEOUT" lease = "1m")]
    async fn missing_comma() {}

    #[delay_handler("ORDER_TIMEOUT", backoff(start = "1s"))]
    async fn unknown_backoff_key() {}

    #[delay_handler("", max_attempts = 0, timeout = "soon", backoff(factor = 0, jitter = 2))]
    async fn errors_are_reported_together() {}

    #[delay_handler("", lease = "1ms")]
    async fn errors_in_attribute_and_function<T>(_order: &str) {}

    #[delay_handler("dq.x")]
    async fn reserved() {}

    #[delay_handler("A", aliases = ["dq.old"])]
    async fn reserved_alias() {}
}

mod limits {
    use dq::delay_handler;

    #[delay_handler("A", max_running = 0)]
    async fn no_job() {}

    #[delay_handler("B", rate = "10")]
    async fn no_time() {}

    #[delay_handler("C", rate = "0/1s")]
    async fn no_start() {}

    #[delay_handler("D", rate = "20000/1s burst 5")]
    async fn too_fast() {}

    #[delay_handler("E", rate = 10)]
    async fn no_text() {}
}

mod slots {
    use dq::delay_handler;

    #[delay_handler("A", priority = "urgent")]
    async fn no_level() {}

    #[delay_handler("B", priority = 1)]
    async fn no_text() {}

    #[delay_handler("C", reserve = 0)]
    async fn no_reserve() {}

    #[delay_handler("D", reserve = 4, concurrency = 2)]
    async fn too_large() {}
}

mod settings {
    use dq::delay_handler;

    #[delay_handler("A", backoff(jitter = 1.5))]
    async fn jitter() {}

    #[delay_handler("B", backoff(factor = 0.5))]
    async fn factor() {}

    #[delay_handler("C", backoff(initial = "5m", max = "1m"))]
    async fn initial_longer_than_max() {}

    #[delay_handler("E", backoff(jitter = "much"))]
    async fn no_number() {}

    #[delay_handler("A", max_attempts = 0)]
    async fn no_attempt() {}

    #[delay_handler("D", max_attempts = -1)]
    async fn negative() {}

    const ATTEMPTS: u32 = 3;

    #[delay_handler("F", max_attempts = ATTEMPTS)]
    async fn no_literal() {}

    #[delay_handler("A", timeout = "soon")]
    async fn no_duration() {}

    #[delay_handler("B", timeout = 30)]
    async fn no_unit() {}

    #[delay_handler("C", timeout = "0s")]
    async fn zero() {}

    #[delay_handler("D", lease = "100ms")]
    async fn lease_too_short() {}
}

mod policies {
    use dq::delay_handler;

    #[delay_handler("A", escalate = [])]
    async fn no_steps() {}

    #[delay_handler("B", escalate = ["15m", "0s"])]
    async fn no_delay() {}

    #[delay_handler("C", escalate = "15m")]
    async fn no_list() {}

    #[delay_handler("E", escalate_from = "first_due")]
    async fn from_without_steps() {}

    #[delay_handler("F", escalate = ["15m"], escalate_from = "start")]
    async fn from_elsewhere() {}

    async fn is_open(_order: u64) -> bool {
        true
    }

    #[delay_handler("A", guard = "is_open")]
    async fn no_path(_order: u64) {}

    #[delay_handler("B", guard_timeout = "1s")]
    async fn no_guard(_order: u64) {}

    #[delay_handler("A", late = "5m")]
    async fn no_parentheses() {}

    #[delay_handler("B", late(after = "0s", then = "drop"))]
    async fn out_of_range() {}

    #[delay_handler("C", late(after = "5m"))]
    async fn late_without_then(_order: u64) {}

    #[delay_handler("D", late(after = "5m", then = "queue:"))]
    async fn no_queue() {}

    #[delay_handler("A", version = 0)]
    async fn zero(_order: u64) {}

    #[delay_handler("B", upgrade_from(1 = upgrade))]
    async fn no_version(_order: u64) {}

    #[delay_handler("C", version = 3, upgrade_from(1 = upgrade))]
    async fn gap_at_the_end(_order: u64) {}

    #[delay_handler("D", version = 4, upgrade_from(1 = upgrade, 3 = upgrade))]
    async fn gap_between(_order: u64) {}

    #[delay_handler("F", version = 2, upgrade_from(1 = upgrade))]
    async fn no_payload() {}

    #[delay_handler("G", aliases = ["G", ""])]
    async fn empty_alias() {}

    #[delay_handler("I", aliases = ["I", "OLD", "OLD"])]
    async fn repeated_alias() {}

    #[delay_handler("J", version = 2, upgrade_from())]
    async fn nothing_to_upgrade_from(_order: u64) {}

    #[delay_handler("K", version = 1, upgrade_from(0 = upgrade))]
    async fn no_version_before(_order: u64) {}

    fn upgrade(old: u32) -> u64 {
        old.into()
    }
}

/// A schedule is refused where it is written.
mod schedules {
    use dq::prelude::*;

    #[delay_handler("NO_CRON", cron = "61 * * * *")]
    async fn no_cron() {}

    #[delay_handler("NO_ZONE", cron = "@daily", tz = "Stockholm")]
    async fn no_zone() {}

    #[delay_handler("INTERVAL_OF_ZERO", every = "0s")]
    async fn interval_of_zero() {}

    #[delay_handler("BOTH", cron = "@daily", every = "1m")]
    async fn both() {}

    #[delay_handler("NEITHER", jitter = "1m")]
    async fn neither() {}

    #[delay_handler("ZONE_OF_INTERVAL", every = "1m", tz = "UTC")]
    async fn zone_of_interval() {}

    #[delay_handler("CATCH_UP", every = "1m", catch_up = "all")]
    async fn catch_up() {}

    #[delay_handler("OVERLAP", every = "1m", overlap = "queue")]
    async fn overlap() {}

    #[delay_handler("DEADLINE", every = "1m", deadline = "0s")]
    async fn deadline() {}
}

mod queue_code {
    use dq::QueueCode;

    #[derive(QueueCode)]
    struct OrderTimeout;

    #[derive(QueueCode)]
    enum CodeOnVariantWithFields {
        OrderTimeout,
        SendMail { to: String },
        SendSms(String),
    }

    #[derive(QueueCode)]
    enum CodeTwiceInEnum {
        OrderTimeout,
        #[queue_code("ORDER_TIMEOUT")]
        Order,
        SendSms,
        SendSMS,
    }

    #[derive(QueueCode)]
    #[queue_code(rename_all = "UPPERCASE")]
    enum Case {
        A,
    }

    #[derive(QueueCode)]
    #[queue_code(rename = "A")]
    enum Key {
        A,
    }

    #[derive(QueueCode)]
    enum Variants {
        #[queue_code("")]
        Empty,
        #[queue_code(name = "B")]
        Assigned,
        #[queue_code("C")]
        #[queue_code("D")]
        Twice,
    }
}

/// An error in a handler causes no further errors at `schedule` calls.
mod spread {
    use dq::{Dq, delay_handler};

    #[delay_handler("NOT_ASYNC")]
    fn not_async(_number: u64) {}

    #[delay_handler("UNKNOWN_KEY", attempts = 3)]
    async fn unknown_key(_number: u64) {}

    fn schedule(dq: &Dq) {
        let _ = dq.schedule::<not_async>(1);
        let _ = dq.schedule::<unknown_key>(1);
    }
}

fn main() {}
