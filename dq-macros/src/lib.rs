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
/// The function stays what it is and can be called as ever, in a unit test for example. Beside it
/// there is now a type of the same name, which stands for the queue:
/// `dq.schedule::<order_timeout>(UnpaidOrder { id: 1001 })`. The handler is registered as soon as
/// its crate is linked; a crate that nothing in the program names is not, so write
/// `use my_handlers as _;`.
///
/// # The code
///
/// What comes first names the queue: 1 to 128 bytes without control characters. It is a string,
/// or any expression whose type is a [`QueueCode`](macro@QueueCode), like a constant or a variant.
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
/// All are optional, checked while you compile, and give way to what the configuration says about
/// the queue.
///
/// | Key | Meaning | Unless set |
/// |---|---|---|
/// | `max_attempts = 5` | attempts of a job before it is dead; 1 means no retry | 5 |
/// | `timeout = "30s"` | longest run; `"none"` for no limit | 15 min |
/// | `lease = "1m"` | how long after a crash the job runs again; `"1s"` to `"1day"` | 30 s |
/// | `concurrency = 8` | jobs that one runner runs at once | 16 |
/// | `max_losses = 3` | leases that may lapse in a row before the job is dead | 10 |
/// | `backoff(initial = "1s", factor = 2.0, max = "10m", jitter = 0.2)` | delays between attempts; leave out what suits | as shown |
/// | `blocking` | the function is a plain `fn` and runs where it may block its thread; it cannot be dropped: at its timeout `ctx.is_cancelled()` becomes true, and what it returns counts | |
/// | `crate = "::dq"` | path of this crate, for those who renamed it | `::dq` |
///
/// ```
/// # use dq::delay_handler;
/// #[delay_handler("RENDER_INVOICE", blocking, concurrency = 2, backoff(initial = "10s"))]
/// fn render_invoice(number: u64) -> std::io::Result<()> {
///     std::fs::write(format!("/tmp/invoice-{number}.pdf"), b"...")
/// }
/// ```
///
/// # The arguments
///
/// Extractors, then the payload. Each may be left out.
///
/// The last argument is the payload, of any type that implements `serde::Deserialize`, unless it
/// is a `JobContext`, a `State<T>` or a `RawPayload`. An extractor of your own, a type that
/// implements `FromJob`, is marked in that place:
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
/// The payload is decoded first, then the extractors are made in their order, then the function is
/// called. A payload that does not decode makes the job dead; an extractor's error is a failed
/// attempt. A handler without a payload has the payload `()` and leaves the bytes alone.
///
/// # The result
///
/// `()`, `Outcome`, or a `Result` of either with any error type. An error is a failed attempt.
#[proc_macro_attribute]
pub fn delay_handler(attribute: TokenStream, item: TokenStream) -> TokenStream {
    delay_handler::expand(attribute.into(), item.into()).into()
}

/// Lets the variants of an enum name queues.
///
/// A variant's code is its name in `SCREAMING_SNAKE_CASE`, or what its attribute says. No two
/// variants may have the same.
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
/// On the enum stands how names become codes: `SCREAMING_SNAKE_CASE`, `snake_case`, `kebab-case`,
/// or `PascalCase`, which takes a name as it is; and the path of `dq` for those who renamed it.
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
