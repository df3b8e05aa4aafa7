//! The macros for `dq`; use them through the facade.

mod delay_handler;
mod errors;
mod queue_code;
mod value;

use proc_macro::TokenStream;

/// Turns an async function into a queue's handler.
///
/// ```
/// use dq::{JobContext, Outcome, State, delay_handler};
/// # #[derive(Clone)] struct Db;
/// # impl Db { async fn is_paid(&self, _: u64) -> dq::Result<bool> { Ok(true) } }
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct UnpaidOrder {
///     id: u64,
/// }
///
/// #[delay_handler("ORDER_TIMEOUT", max_attempts = 5, timeout = "30s")]
/// async fn order_timeout(
///     ctx: JobContext,
///     State(db): State<Db>,
///     order: UnpaidOrder,
/// ) -> dq::Result<Outcome> {
///     if db.is_paid(order.id).await? {
///         return Ok(Outcome::skip("paid"));
///     }
///     println!("attempt {} to cancel order {}", ctx.attempt(), order.id);
///     Ok(Outcome::Done)
/// }
/// ```
///
/// The function stays unchanged; you can still call it directly, such as in a unit test. The macro
/// adds a type with the same name, which identifies the queue:
/// `dq.schedule::<order_timeout>(UnpaidOrder { id: 1001 })`. Linking the crate registers the
/// handler. Rust does not link a crate that your program never names:
/// write `use my_handlers as _;`.
///
/// # The code
///
/// The first argument is the handler's code, which is also its queue's name: 1 to 128 bytes without
/// control characters. Write a string, or an expression whose type implements
/// [`QueueCode`](macro@QueueCode), such as a constant or an enum variant.
///
/// ```
/// use dq::{QueueCode, delay_handler};
///
/// const SEND_MAIL: &str = "SEND_MAIL";
///
/// #[derive(QueueCode)]
/// enum Code {
///     SendSms,
/// }
///
/// #[delay_handler(SEND_MAIL)]
/// async fn send_mail(to: String) {}
///
/// #[delay_handler(Code::SendSms)]
/// async fn send_sms(to: String) {}
/// ```
///
/// # The settings
///
/// All settings are optional and checked at compile time. The queue's configuration overrides those
/// that are also in `QueueSettings`.
///
/// | Key | Meaning | Default |
/// |---|---|---|
/// | `max_attempts = 5` | maximum attempts per job; 1 means no retry | 5 |
/// | `timeout = "30s"` | time limit for a run; `"none"` for no limit | 15 min |
/// | `lease = "1m"` | how long a lease lasts unless renewed; after a crash the job runs again this much later; `"1s"` to `"1d"` | 30 s |
/// | `concurrency = 8` | maximum number of this queue's jobs that a runner runs at once | 16 |
/// | `priority = "high"` | which queues of a runner start jobs first while its slots are scarce: `"high"`, `"normal"` or `"low"`, in strict order | `"normal"` |
/// | `reserve = 4` | how many of a runner's slots only this queue may use, at most `concurrency`; they are idle while it has no due job | none |
/// | `max_running = 3` | maximum number of this queue's jobs that run at once, in all processes together | no limit |
/// | `group_max_running = 2` | maximum number of jobs of each group that run at once, in all processes together | no limit |
/// | `rate = "10/1s"` | how fast this queue's jobs start, in all processes together; `"10/1s burst 20"` lets 20 start at once after an idle time | no limit |
/// | `max_losses = 3` | consecutive leases that may expire before the job is dead | 10 |
/// | `backoff(initial = "1s", factor = 2.0, max = "10m", jitter = 0.2)` | delays between attempts; each key is optional | as shown |
/// | `late(after = "5m", then = "skip")` | what happens to a job that would start later than `after` its due time: `"run"`, `"skip"`, `"dead"` or `"queue:NAME"` | it runs |
/// | `escalate = ["15m", "1h", "1d"]` | escalation delays: before the first step, before the second, and so on; `Outcome::next_step()` moves on | |
/// | `escalate_from = "first_due"` | the later `escalate` delays add up from the first step's due time, even after an outage; with `"step_end"` each counts from the end of the step before | `"step_end"` |
/// | `guard = is_still_unpaid` | an async function that takes extractors and then the payload, as needed, and runs just before the handler; `false` or `Guard::skip(reason)` skips the job | |
/// | `guard_timeout = "5s"` | time limit for the guard; exceeding it is a failed attempt | 10 s |
/// | `version = 2` | the payload's schema version, which travels with each job | |
/// | `upgrade_from(1 = upgrade_v1)` | functions that convert an older payload to the next version; each returns a value or a `Result` | |
/// | `aliases = ["OLD_CODE"]` | the handler's earlier codes; it runs jobs from those queues, too | |
/// | `blocking` | the function is a plain `fn` and runs on a thread for blocking calls; it cannot be dropped: at its timeout `ctx.is_cancelled()` becomes true, and its return value counts | |
/// | `crate = "::dq"` | path to the crate `dq`, if you renamed it | `::dq` |
///
/// ```
/// # use dq::delay_handler;
/// #[delay_handler("RENDER_INVOICE", blocking, concurrency = 2, backoff(initial = "10s"))]
/// fn render_invoice(number: u64) -> std::io::Result<()> {
///     std::fs::write(format!("/tmp/invoice-{number}.pdf"), b"...")
/// }
/// ```
///
/// # The schedule
///
/// A handler can declare a schedule, named after its code. The runner stores it on start.
/// Expression, zone and durations are checked at compile time.
///
/// | Key | Meaning | Default |
/// |---|---|---|
/// | `cron = "30 2 * * *"` | times, as minute, hour, day of month, month and day of week | |
/// | `tz = "Europe/Stockholm"` | IANA time zone for `cron` | `"UTC"` |
/// | `every = "90s"` | an interval, instead of `cron`; the times are its whole multiples since 1970 | |
/// | `catch_up = "last"` | which missed occurrences to run: the last one, `"none"`, or the last few, such as `"all:10"` | `"last"` |
/// | `overlap = "skip"` | what happens while an earlier occurrence's job is live: the new one is skipped, runs (`"allow"`), or waits (`"queue_one"`) | `"skip"`; `"allow"` with `"all:…"` |
/// | `deadline = "1h"` | how late an occurrence may be scheduled | any time |
/// | `jitter = "10s"` | delays all occurrences by a part of this time, derived from the queue name | none |
///
/// The jobs carry the payload's default value, so the payload must implement `Default` and
/// `serde::Serialize`; `()` does. `ctx.occurrence()` is the nominal time.
///
/// ```
/// # use dq::{JobContext, delay_handler};
/// #[delay_handler("REPORT", cron = "30 2 * * MON-FRI", tz = "Europe/Stockholm", jitter = "1m")]
/// async fn report(ctx: JobContext) {
///     println!("the report of {:?}", ctx.occurrence());
/// }
/// ```
///
/// # The arguments
///
/// The arguments are extractors, then the payload; all are optional. The payload's type implements
/// `serde::Deserialize`. A last argument is the payload unless it is a `JobContext`, a `State<T>`
/// or a `RawPayload`. Mark any other extractor, a type that implements `FromJob`, with `#[extract]`
/// if it comes last:
///
/// ```
/// use dq::{BoxError, FromJob, JobContext, delay_handler};
///
/// struct Tenant(String);
///
/// impl FromJob for Tenant {
///     async fn from_job(ctx: &JobContext) -> Result<Self, BoxError> {
///         let tenant = ctx.headers().get("tenant").ok_or("no tenant header")?;
///         Ok(Tenant(tenant.to_owned()))
///     }
/// }
///
/// #[delay_handler("CLOSE_BOOKS")]
/// async fn close_books(#[extract] Tenant(name): Tenant) {
///     println!("closing the books of {name}");
/// }
/// ```
///
/// A run asks the `guard` first, if there is one. Then it decodes the payload, runs the extractors
/// in order, and calls the function. A guard gets its own values, read in the same order. If the
/// payload does not decode, the job is dead; if its `version` is newer, the job waits. An extractor
/// error is a failed attempt. A handler without a payload argument has the payload type `()` and
/// decodes nothing.
///
/// # The result
///
/// Return `()`, `Outcome`, or a `Result` with either and any error type. An error is a failed
/// attempt.
#[proc_macro_attribute]
pub fn delay_handler(attribute: TokenStream, item: TokenStream) -> TokenStream {
    delay_handler::expand(attribute.into(), item.into()).into()
}

/// Implements `QueueCode` for an enum, so that its variants can be handler codes.
///
/// A variant's code is its name in `SCREAMING_SNAKE_CASE`, or its attribute's string. The codes in
/// an enum must differ.
///
/// ```
/// use dq::QueueCode;
///
/// #[derive(QueueCode)]
/// enum Code {
///     OrderTimeout,
///     #[queue_code("AI_QUEUE_RECORD_EXPIRED")]
///     RecordExpired,
/// }
///
/// assert_eq!(Code::OrderTimeout.code(), "ORDER_TIMEOUT");
/// assert_eq!(Code::RecordExpired.code(), "AI_QUEUE_RECORD_EXPIRED");
/// ```
///
/// An attribute on the enum sets the case: `SCREAMING_SNAKE_CASE`, `snake_case`, `kebab-case`, or
/// `PascalCase`, which leaves names unchanged. It also sets the path to `dq`, if you renamed it.
///
/// ```
/// # use dq::QueueCode;
/// #[derive(QueueCode)]
/// #[queue_code(rename_all = "kebab-case", crate = "::dq")]
/// enum Code {
///     SendSMS,
/// }
///
/// assert_eq!(Code::SendSMS.code(), "send-sms");
/// ```
#[proc_macro_derive(QueueCode, attributes(queue_code))]
pub fn queue_code(input: TokenStream) -> TokenStream {
    queue_code::expand(input.into()).into()
}
