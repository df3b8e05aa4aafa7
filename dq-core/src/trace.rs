//! Trace context, carried from whoever schedules to the handler in the `traceparent` header.

use std::fmt;
use std::str::FromStr;

use crate::entropy::Entropy;
use crate::model::Headers;

/// A position in a trace, as W3C Trace Context writes it in a `traceparent` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace; not zero.
    pub trace_id: u128,
    /// The span that is the parent; not zero.
    pub parent_id: u64,
    /// Whether the trace is recorded.
    pub sampled: bool,
}

impl TraceContext {
    /// A new trace.
    #[must_use]
    pub fn root(entropy: &Entropy) -> Self {
        Self { trace_id: entropy.bits().max(1), parent_id: span_id(entropy), sampled: true }
    }

    /// The same trace with a parent of its own.
    #[must_use]
    pub fn child(self, entropy: &Entropy) -> Self {
        Self { parent_id: span_id(entropy), ..self }
    }

    /// What the headers of a job say; `None` if they say nothing, or nothing that is well formed.
    #[must_use]
    pub fn from_headers(headers: &Headers) -> Option<Self> {
        headers.get(Headers::TRACEPARENT)?.parse().ok()
    }
}

fn span_id(entropy: &Entropy) -> u64 {
    // The lower half of 128 random bits; zero is not allowed.
    ((entropy.bits() & u128::from(u64::MAX)) as u64).max(1)
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.sampled);
        write!(f, "00-{:032x}-{:016x}-{flags:02x}", self.trace_id, self.parent_id)
    }
}

/// The text is no `traceparent`.
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
    /// The trace that the handler running in this task belongs to.
    static CURRENT: TraceContext;
}

/// Where the trace context of a new job comes from.
///
/// The default is the trace of the handler that schedules it, or a new one where the scheduling
/// happens inside a `tracing` span. Implement it to hand over your tracer's own context.
pub trait Propagator: fmt::Debug + Send + Sync + 'static {
    /// The context to put into the headers of a job that is scheduled here and now.
    fn current(&self, entropy: &Entropy) -> Option<TraceContext>;
}

/// The [`Propagator`] that is used unless another is given.
#[derive(Debug, Clone, Copy, Default)]
pub struct DefaultPropagator;

impl Propagator for DefaultPropagator {
    fn current(&self, entropy: &Entropy) -> Option<TraceContext> {
        let of_handler = CURRENT.try_with(|context| context.child(entropy)).ok();
        of_handler.or_else(|| {
            let inside = !tracing::Span::current().is_disabled();
            inside.then(|| TraceContext::root(entropy))
        })
    }
}

/// Runs a handler as part of a trace, so that what it schedules belongs to the same.
pub(crate) async fn within<F: Future>(context: Option<TraceContext>, run: F) -> F::Output {
    match context {
        Some(context) => CURRENT.scope(context, run).await,
        None => run.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes_and_refuses_what_is_malformed() {
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

    #[tokio::test]
    async fn what_a_handler_schedules_belongs_to_its_trace() {
        let entropy = Entropy::seeded(3);
        let context = TraceContext::root(&entropy);
        let child = within(Some(context), async { DefaultPropagator.current(&entropy) }).await;
        assert_eq!(child.unwrap().trace_id, context.trace_id);
        assert_ne!(child.unwrap().parent_id, context.parent_id);
    }
}
