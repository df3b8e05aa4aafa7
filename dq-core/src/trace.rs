//! Trace context, passed to the handler in the `traceparent` header.

use std::fmt;
use std::str::FromStr;

use crate::entropy::Entropy;
use crate::model::Headers;

/// A W3C `traceparent` header: a trace and its parent span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace id; not zero.
    pub trace_id: u128,
    /// The parent span id; not zero.
    pub parent_id: u64,
    /// Whether the caller recorded the trace.
    pub sampled: bool,
}

impl TraceContext {
    /// Creates a context for a new, sampled trace.
    pub fn root(entropy: &Entropy) -> Self {
        Self { trace_id: entropy.bits().max(1), parent_id: span_id(entropy), sampled: true }
    }

    /// Creates a context for a child span in the same trace.
    pub fn child(self, entropy: &Entropy) -> Self {
        Self { parent_id: span_id(entropy), ..self }
    }

    /// Reads the context from job headers; `None` if the header is absent or malformed.
    pub fn from_headers(headers: &Headers) -> Option<Self> {
        headers.get(Headers::TRACEPARENT)?.parse().ok()
    }
}

fn span_id(entropy: &Entropy) -> u64 {
    // The lower 64 of 128 random bits; zero is not allowed.
    ((entropy.bits() & u128::from(u64::MAX)) as u64).max(1)
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.sampled);
        write!(f, "00-{:032x}-{:016x}-{flags:02x}", self.trace_id, self.parent_id)
    }
}

/// The error for an invalid `traceparent` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MalformedTraceparent;

impl FromStr for TraceContext {
    type Err = MalformedTraceparent;

    fn from_str(text: &str) -> Result<Self, MalformedTraceparent> {
        let parts: Vec<_> = text.split('-').collect();
        let [version, trace_id, parent_id, flags, ..] = parts[..] else {
            return Err(MalformedTraceparent);
        };
        let lower_hex = |text: &str, len| {
            text.len() == len && text.bytes().all(|b| b"0123456789abcdef".contains(&b))
        };
        let well_formed = lower_hex(version, 2)
            && version != "ff"
            && (version != "00" || parts.len() == 4)
            && lower_hex(trace_id, 32)
            && lower_hex(parent_id, 16)
            && lower_hex(flags, 2);
        if !well_formed {
            return Err(MalformedTraceparent);
        }
        let context = Self {
            trace_id: u128::from_str_radix(trace_id, 16).map_err(|_| MalformedTraceparent)?,
            parent_id: u64::from_str_radix(parent_id, 16).map_err(|_| MalformedTraceparent)?,
            sampled: u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1),
        };
        if context.trace_id == 0 || context.parent_id == 0 {
            return Err(MalformedTraceparent);
        }
        Ok(context)
    }
}

tokio::task_local! {
    /// The running handler's context, in this task or in a blocking call's thread.
    static CURRENT: TraceContext;
}

/// A trace context source for new jobs.
///
/// By default, a handler's new jobs continue its trace. Implement the trait to use another tracing
/// system.
pub trait Propagator: fmt::Debug + Send + Sync + 'static {
    /// Returns the context for a job from the current task; `None` for no trace header.
    fn current(&self, entropy: &Entropy) -> Option<TraceContext>;
}

/// The default [`Propagator`].
///
/// In a handler, it continues the job's trace. Elsewhere, also in tasks that a handler starts, it
/// starts a new trace per job when a `tracing` span is active.
#[derive(Debug, Clone, Copy, Default)]
pub struct DefaultPropagator;

impl Propagator for DefaultPropagator {
    fn current(&self, entropy: &Entropy) -> Option<TraceContext> {
        let in_handler = CURRENT.try_with(|context| context.child(entropy)).ok();
        in_handler.or_else(|| {
            let in_span = !tracing::Span::current().is_disabled();
            in_span.then(|| TraceContext::root(entropy))
        })
    }
}

/// Runs a handler so that the jobs it schedules share its job's trace.
pub(crate) async fn with_context<F: Future>(context: Option<TraceContext>, run: F) -> F::Output {
    match context {
        Some(context) => CURRENT.scope(context, run).await,
        None => run.await,
    }
}

/// The [`with_context`] context and the active span, for a call on another thread.
pub(crate) struct CarriedContext {
    context: Option<TraceContext>,
    span: tracing::Span,
}

impl CarriedContext {
    pub(crate) fn current() -> Self {
        let context = CURRENT.try_with(|context| *context).ok();
        Self { context, span: tracing::Span::current() }
    }

    pub(crate) fn run<R>(self, call: impl FnOnce() -> R) -> R {
        self.span.in_scope(|| match self.context {
            Some(context) => CURRENT.sync_scope(context, call),
            None => call(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_round_trips_through_text_and_malformed_text_is_rejected() {
        let context = TraceContext::root(&Entropy::seeded(3));
        assert_eq!(context.to_string().parse(), Ok(context));
        for text in [
            "",
            "00-0-0-01",
            "00-00000000000000000000000000000000-0000000000000001-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        ] {
            assert_eq!(text.parse::<TraceContext>(), Err(MalformedTraceparent), "{text}");
        }
    }
}
