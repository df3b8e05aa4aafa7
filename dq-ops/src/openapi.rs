//! OpenAPI schemas for text values, so that clients know the accepted forms.
//!
//! The server limits name lengths in bytes, but OpenAPI counts characters. Patterns cover the usual
//! forms; the server accepts a few more, such as `2 hours`.

use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

/// No control characters.
const NAME: &str = r"^[^\x00-\x1F\x7F-\x9F]+$";

/// Parts of a duration. Four of the longest stay below the 100-year limit for due times.
macro_rules! duration_parts {
    () => {
        r"(?:[0-9]{1,3}(?:\.[0-9]{1,2})?w|[0-9]{1,4}(?:\.[0-9]{1,2})?d|[0-9]{1,5}(?:\.[0-9]{1,2})?h|[0-9]{1,6}(?:\.[0-9])?m|[0-9]{1,8}(?:\.[0-9]{1,3})?s|[0-9]{1,10}ms)(?: ?(?:[0-9]{1,3}d|[0-9]{1,5}h|[0-9]{1,6}m|[0-9]{1,8}s|[0-9]{1,10}ms)){0,3}"
    };
}

/// An RFC 3339 time in this century, with valid days per month.
macro_rules! time {
    () => {
        r"20(?:[0-9]{2}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)|(?:[02468][048]|[13579][26])-02-29)T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
    };
}

/// Declares each text schema as an uninhabited type.
macro_rules! texts {
    ($($(#[doc = $doc:literal])+ $name:ident { $($set:tt)* })*) => {$(
        $(#[doc = $doc])+
        #[derive(Debug)]
        pub enum $name {}

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let text = ObjectBuilder::new().schema_type(Type::String);
                let description = concat!($($doc, "\n"),+).replace("\n ", "\n");
                let text = text.description(Some(description.trim()));
                text$($set)*.into()
            }
        }

        impl ToSchema for $name {}
    )*};
}

fn custom(format: &str) -> Option<SchemaFormat> {
    Some(SchemaFormat::Custom(format.to_owned()))
}

texts! {
    /// A queue name: 1 to 128 bytes of UTF-8 without control characters.
    QueueName { .min_length(Some(1)).max_length(Some(128)).pattern(Some(NAME)).examples(["ORDER_TIMEOUT"]) }

    /// A schedule name: 1 to 200 bytes of UTF-8 without control characters.
    ScheduleName { .min_length(Some(1)).max_length(Some(200)).pattern(Some(NAME)).examples(["nightly-report"]) }

    /// Your name for a job: 1 to 255 bytes of UTF-8 without control characters.
    JobKey { .min_length(Some(1)).max_length(Some(255)).pattern(Some(NAME)).examples(["order-4711"]) }

    /// A job's group: 1 to 128 bytes of UTF-8 without control characters.
    JobGroup { .min_length(Some(1)).max_length(Some(128)).pattern(Some(NAME)).examples(["tenant-42"]) }

    /// A worker's name: 1 to 128 bytes of UTF-8 without control characters.
    WorkerName { .min_length(Some(1)).max_length(Some(128)).pattern(Some(NAME)).examples(["py-7f3"]) }

    /// A job: its id, or `key:` and a live job's key. You can also use `key-base64:` and the key in
    /// URL-safe Base64.
    JobTarget {
        .pattern(Some(r"^(?:[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|key:[^\x00-\x1F\x7F-\x9F]{1,255})$"))
        .examples(["key:order-4711", "0190b3e2-7a4f-7c11-8d2e-3f1a5b6c7d8e"])
    }

    /// A job id.
    JobId {
        .format(custom("uuid"))
        .examples(["0190b3e2-7a4f-7c11-8d2e-3f1a5b6c7d8e"])
    }

    /// A due time: a delay such as `15m` or `1h 30m`, a time such as `2027-01-31T10:00:00Z`, or
    /// `now`.
    Due {
        .pattern(Some(concat!("^(?:now|0|", duration_parts!(), "|", time!(), ")$")))
        .examples(["30m", "2027-01-31T10:00:00Z", "now"])
    }

    /// A duration such as `15m`, `1h 30m` or `1.5h`, in `ms`, `s`, `m`, `h`, `d` and `w`.
    Duration {
        .pattern(Some(concat!("^(?:0|", duration_parts!(), ")$"))).examples(["15m", "1h 30m"])
    }

    /// A non-zero duration such as `90s`, in `ms`, `s`, `m`, `h`, `d` and `w`.
    PositiveDuration {
        .pattern(Some(r"^(?:[1-9][0-9]{0,2}w|[1-9][0-9]{0,3}d|[1-9][0-9]{0,4}h|[1-9][0-9]{0,5}m|[1-9][0-9]{0,7}s|[1-9][0-9]{0,9}ms)$"))
        .examples(["90s"])
    }

    /// A simulation window of up to 31 days, such as `8h`.
    SimulationWindow {
        .pattern(Some(r"^(?:[1-9][0-9]{0,9}ms|[1-9][0-9]{0,5}s|[1-9][0-9]{0,3}m|[1-9][0-9]?h|[1-6][0-9]{2}h|(?:[1-9]|[12][0-9]|3[01])d)$"))
        .examples(["24h"])
    }

    /// A cron expression: minute, hour, day of month, month and day of week.
    CronExpression { .format(custom("cron")).examples(["30 2 * * MON-FRI"]) }

    /// How fast jobs start: a number, a time, and how many start at once after an idle time.
    Rate {
        .pattern(Some("^(?:[1-9][0-9]{0,3}|10000)/[1-9]?[smh](?: burst (?:[1-9][0-9]{0,3}|10000))?$"))
        .examples(["10/1s", "100/1m burst 5"])
    }

    /// An IANA time zone.
    TimeZone { .format(custom("time-zone")).examples(["Europe/Stockholm"]) }

    /// What happens to missed occurrences: `last`, `none`, or `all:` and a limit.
    CatchUp { .pattern(Some("^(?:last|none|all:(?:[1-9][0-9]{0,2}|1000))$")).examples(["last", "all:10"]) }

    /// What happens while an earlier occurrence's job is live.
    Overlap { .enum_values(Some(["skip", "allow", "queue_one"])) }

    /// If a waiting job has the key: `keep` (the default) does not store the new job;
    /// `replace` replaces the waiting job; `earliest` and `latest` keep the job that is due first
    /// or last.
    OnConflict { .enum_values(Some(["keep", "replace", "earliest", "latest"])) }

    /// If a running job has the key: `refuse` (the default) does not store the new
    /// job; `detach` moves the key from the running job to the new one.
    OnRunning { .enum_values(Some(["refuse", "detach"])) }

    /// A job's state.
    JobState { .enum_values(Some(["scheduled", "ready", "running", "dead", "ended"])) }

    /// Why a job is dead.
    DeadKind {
        .enum_values(Some(["exhausted", "rejected", "undecodable", "lost", "quarantined", "late"]))
    }

    /// How a job ended.
    Ending { .enum_values(Some(["done", "skipped", "cancelled", "replaced", "removed"])) }

    /// Why jobs are late.
    LatenessCause {
        .enum_values(Some(["paused", "no_runner", "max_running", "rate", "throttled", "group_full", "slots_full", "handlers_slow", "store_slow", "clock_skew", "other"]))
    }

    /// A queue's level in a runner.
    Priority { .enum_values(Some(["high", "normal", "low"])) }

    /// How serious a problem is.
    Severity { .enum_values(Some(["info", "warning", "error"])) }

    /// A listing's order.
    Order { .enum_values(Some(["asc", "desc"])) }

    /// A text to search for: up to 1,024 bytes.
    SearchText { .min_length(Some(1)).max_length(Some(1_024)) }

    /// A text to compare with: up to 4,096 bytes.
    FilterText { .min_length(Some(1)).max_length(Some(4_096)) }

    /// A position in a listing, returned by an earlier page; empty for the start.
    Cursor { .pattern(Some("^(?:[A-Za-z0-9_-]{34}[AEIMQUYcgkosw048])?$")) }

    /// Bytes in Base64, with padding.
    Base64 {
        .pattern(Some("^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"))
        .examples(["AP8="])
    }

    /// Your name for a request, so that you can repeat it: 1 to 255 ASCII characters.
    IdempotencyKey {
        .min_length(Some(1)).max_length(Some(255)).pattern(Some("^[!-~](?:[ -~]*[!-~])?$"))
        .examples(["checkout-4711"])
    }
}

/// Jobs that run at once.
#[derive(Debug)]
pub enum Slots {}

impl PartialSchema for Slots {
    fn schema() -> RefOr<Schema> {
        let format = Some(SchemaFormat::KnownFormat(KnownFormat::Int64));
        ObjectBuilder::new().schema_type(Type::Integer).format(format).minimum(Some(1)).into()
    }
}

impl ToSchema for Slots {}

/// How many jobs of each queue: of 1 to 1,000 queues.
#[derive(Debug)]
pub enum WantedQueues {}

impl PartialSchema for WantedQueues {
    fn schema() -> RefOr<Schema> {
        let RefOr::T(name) = QueueName::schema() else { unreachable!("a text has its own schema") };
        let queues = ObjectBuilder::new().schema_type(Type::Object).property_names(Some(name));
        let queues = queues.additional_properties(Some(Slots::schema()));
        queues.min_properties(Some(1)).max_properties(Some(1_000)).into()
    }
}

impl ToSchema for WantedQueues {}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::de::DeserializeOwned;
    use serde_json::Value;

    use super::*;

    fn values<T: PartialSchema>() -> Vec<Value> {
        let schema = serde_json::to_value(T::schema()).unwrap();
        schema["enum"].as_array().unwrap().clone()
    }

    fn are_of<S: PartialSchema, T: DeserializeOwned + Debug>() {
        for value in values::<S>() {
            serde_json::from_value::<T>(value.clone())
                .unwrap_or_else(|error| panic!("{value}: {error}"));
        }
    }

    #[test]
    fn enumerations_have_the_values_of_their_types() {
        are_of::<OnConflict, dq_core::OnConflict>();
        are_of::<OnRunning, dq_core::OnRunning>();
        are_of::<JobState, dq_core::JobState>();
        are_of::<DeadKind, dq_core::DeadKind>();
        are_of::<Ending, dq_core::Ending>();
        are_of::<LatenessCause, dq_core::LatenessCause>();
        are_of::<Priority, dq_core::Priority>();
        for value in values::<Overlap>() {
            value.as_str().unwrap().parse::<dq_core::Overlap>().unwrap();
        }
    }

    #[test]
    fn descriptions_are_the_comments() {
        let schema = serde_json::to_value(QueueName::schema()).unwrap();
        let description = schema["description"].as_str().unwrap();
        assert!(description.contains("1 to 128 bytes of UTF-8"), "{description}");
    }
}
