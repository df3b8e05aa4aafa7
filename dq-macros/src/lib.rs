//! The macros of `dq`; use them through the facade.

mod delay_handler;
mod errors;
mod queue_code;
mod value;

use proc_macro::TokenStream;

/// Makes an async function the handler of a queue.
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
/// The function is unchanged and can be called directly, such as in a unit test. The macro adds a
/// type of the same name, which identifies the queue:
/// `dq.schedule::<order_timeout>(UnpaidOrder { id: 1001 })`. Linking the crate registers the
/// handler. A crate that is never named in the program is not linked; write
/// `use my_handlers as _;`.
///
/// # The code
///
/// The first argument is the name of the queue: 1 to 128 bytes without control characters. It is a
/// string, or an expression whose type implements [`QueueCode`](macro@QueueCode), such as a
/// constant or an enum variant.
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
/// All are optional and checked at compile time. The configuration of the queue overrides those
/// that are fields of `QueueSettings`.
///
/// | Key | Meaning | Default |
/// |---|---|---|
/// | `max_attempts = 5` | maximum number of attempts of a job; 1 means no retry | 5 |
/// | `timeout = "30s"` | maximum duration of one run; `"none"` for no limit | 15 min |
/// | `lease = "1m"` | how long a lease lasts unless renewed, which is how long after a crash the job runs again; `"1s"` to `"1day"` | 30 s |
/// | `concurrency = 8` | maximum number of jobs of the queue that one runner runs concurrently | 16 |
/// | `max_losses = 3` | consecutive leases that may expire before the job is dead | 10 |
/// | `backoff(initial = "1s", factor = 2.0, max = "10m", jitter = 0.2)` | delays between attempts; each key is optional | as shown |
/// | `late(after = "5m", then = "skip")` | what happens to a job that starts later than that after its due time: `"run"`, `"skip"`, `"dead"` or `"queue:NAME"` | it runs |
/// | `escalate = ["15m", "1h", "1d"]` | the delays of an escalation: before the first step, between the first and the second, and so on; `Outcome::next_step()` goes on to the next | |
/// | `escalate_from = "first_due"` | the delays of `escalate` after the first add up from the due time of the first step, also after an outage; each counts from the end of the step before (`"step_end"`) otherwise | `"step_end"` |
/// | `guard = is_still_unpaid` | an async function of extractors and then the payload, as far as it needs them, asked just before the handler; on `false` or a `Guard::skip(reason)` the job is skipped | |
/// | `guard_timeout = "5s"` | maximum duration of the guard; a longer one is a failed attempt | 10 s |
/// | `version = 2` | the version of the payload's schema, which travels with each job | |
/// | `upgrade_from(1 = upgrade_v1)` | functions that convert a payload of an older version to the next one; each returns a value or a `Result` | |
/// | `aliases = ["OLD_CODE"]` | codes that the handler had before; it runs the jobs of those queues, too | |
/// | `blocking` | the function is a plain `fn` and runs on a thread for blocking calls; it cannot be dropped: at its timeout `ctx.is_cancelled()` becomes true, and its return value counts | |
/// | `crate = "::dq"` | path of the crate `dq`, if it is renamed | `::dq` |
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
/// A handler can declare a schedule of jobs, whose name is the code. The runner stores it when it
/// starts. Expression, zone and durations are checked at compile time.
///
/// | Key | Meaning | Default |
/// |---|---|---|
/// | `cron = "30 2 * * *"` | times, as minute, hour, day of month, month and day of week | |
/// | `tz = "Europe/Stockholm"` | time zone of `cron`, by its name in the IANA database | `"UTC"` |
/// | `every = "90s"` | instead of `cron`: an interval; the times are its whole multiples since 1970 | |
/// | `catch_up = "last"` | which missed occurrences run, when no process ran at their time: the last one, `"none"`, or the last ones, such as `"all:10"` | `"last"` |
/// | `overlap = "skip"` | what happens while the job of an earlier occurrence is live: the occurrence is skipped, runs (`"allow"`), or waits (`"queue_one"`) | `"skip"`; `"allow"` with `"all:…"` |
/// | `deadline = "1h"` | how late an occurrence may be scheduled | any time |
/// | `jitter = "10s"` | makes all occurrences later by a part of this time, which depends on the code | none |
///
/// The jobs have the default value of the payload, so a payload must implement `Default` and
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
/// Extractors, then the payload; all are optional.
///
/// The last argument is the payload, of any type that implements `serde::Deserialize`, unless it
/// is a `JobContext`, a `State<T>` or a `RawPayload`. Another extractor, a type that implements
/// `FromJob`, needs the mark `#[extract]` in the last place:
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
/// The payload is decoded first, then the extractors run in order, then the function is called. A
/// payload that does not decode makes the job dead, and one of a newer `version` waits; an extractor's
/// error is a failed attempt. A `guard` gets values of its own: what it takes is read for it, and again
/// for the function. A
/// handler without a payload argument has the payload type `()` and does not decode the payload.
///
/// # The result
///
/// `()`, `Outcome`, or a `Result` of either with any error type. An error is a failed attempt.
#[proc_macro_attribute]
pub fn delay_handler(attribute: TokenStream, item: TokenStream) -> TokenStream {
    delay_handler::expand(attribute.into(), item.into()).into()
}

/// Implements `QueueCode` for an enum, so that its variants can be codes of handlers.
///
/// A variant's code is its name in `SCREAMING_SNAKE_CASE`, or the string of its attribute. The
/// codes of an enum must differ.
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
/// An attribute of the enum sets the case of the codes: `SCREAMING_SNAKE_CASE`, `snake_case`,
/// `kebab-case`, or `PascalCase`, which leaves names unchanged. It also sets the path of `dq`, if
/// it is renamed.
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
