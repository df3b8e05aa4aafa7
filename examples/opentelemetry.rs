//! One trace of OpenTelemetry from an HTTP request, through the delay, to the handler.
//!
//! ```sh
//! cargo run -p dq-examples --example opentelemetry
//! curl -X POST http://127.0.0.1:3000/orders/17 \
//!   -H 'traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
//! ```
//!
//! The job carries the trace in its header `traceparent`. Two short pieces connect it to
//! OpenTelemetry. A propagator gives a new job the current span. Middleware continues the trace in
//! a span around the handler. This example prints each span; in your program, send them to a
//! collector instead, such as with `opentelemetry-otlp`.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::routing::post;
use axum::{Router, serve};
use clap::Parser;
use dq::prelude::*;
use dq::{Entropy, JobResult, Middleware, Next, Propagator, TraceContext};
use opentelemetry::context::FutureExt as _;
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId, TraceState,
    Tracer as _,
};
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tokio::net::TcpListener;

#[derive(Parser)]
struct Options {
    /// Milliseconds until an order is closed.
    #[arg(long, default_value_t = 2_000)]
    delay: u64,
    /// Address to serve at; port 0 selects a free one.
    #[arg(long, default_value = "127.0.0.1:3000")]
    listen: String,
    /// URL of the store.
    #[arg(long, default_value = "memory:")]
    backend: String,
}

/// Makes the current OpenTelemetry span the parent of new jobs.
#[derive(Debug)]
struct CurrentSpan;

impl Propagator for CurrentSpan {
    fn current(&self, _: &Entropy) -> Option<TraceContext> {
        let context = Context::current();
        let span = context.span().span_context().clone();
        span.is_valid().then(|| TraceContext {
            trace_id: u128::from_be_bytes(span.trace_id().to_bytes()),
            parent_id: u64::from_be_bytes(span.span_id().to_bytes()),
            sampled: span.is_sampled(),
        })
    }
}

/// Builds the context of a remote span.
fn remote(trace: TraceContext) -> Context {
    let flags = if trace.sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    let (trace_id, span_id) = (TraceId::from(trace.trace_id), SpanId::from(trace.parent_id));
    let span = SpanContext::new(trace_id, span_id, flags, true, TraceState::default());
    Context::new().with_remote_span_context(span)
}

/// Starts a span and makes it current, in `trace` if given.
fn start(name: String, kind: SpanKind, trace: Option<TraceContext>) -> Context {
    let tracer = global::tracer("orders");
    let parent = trace.map_or_else(Context::new, remote);
    let span = tracer.span_builder(name).with_kind(kind).start_with_context(&tracer, &parent);
    parent.with_span(span)
}

/// Runs each handler in a span of its job's trace.
struct Traced;

#[dq::async_trait]
impl Middleware for Traced {
    async fn call(&self, job: JobContext, next: Next<'_>) -> JobResult {
        let trace = TraceContext::from_headers(job.headers());
        let context = start(job.queue().to_string(), SpanKind::Consumer, trace);
        let span = context.span();
        span.set_attribute(KeyValue::new("messaging.message.id", job.id().to_string()));
        span.set_attribute(KeyValue::new("dq.lateness_ms", job.lateness().as_millis() as i64));
        let result = next.run(job).with_context(context.clone()).await;
        if let Err(error) = &result {
            span.set_status(Status::error(error.to_string()));
        }
        span.end();
        result
    }
}

#[delay_handler("CLOSE_ORDER")]
async fn close_order(order: u64) {
    // Spans started here are children of the handler's span.
    let tracer = global::tracer("orders");
    tracer.in_span("look for a payment", |_| println!("order {order} is closed"));
}

#[derive(Clone)]
struct Orders {
    dq: Dq,
    delay: Duration,
}

/// Places an order that a job closes after the delay, in the caller's trace.
async fn place(State(orders): State<Orders>, Path(order): Path<u64>, headers: HeaderMap) -> String {
    let traceparent = headers.get("traceparent").and_then(|value| value.to_str().ok());
    let trace = traceparent.and_then(|text| text.parse().ok());
    let context = start("POST /orders/{id}".to_owned(), SpanKind::Server, trace);
    let schedule = async {
        match orders.dq.schedule::<close_order>(order).after(orders.delay).key(order).await {
            Ok(scheduled) => format!("order {order} is closed at {}", scheduled.due()),
            Err(error) => error.to_string(),
        }
    };
    let reply = schedule.with_context(context.clone()).await;
    context.span().end();
    reply
}

/// Prints each span that has ended.
#[derive(Debug)]
struct Print;

impl SpanExporter for Print {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        for span in spans {
            let (trace, id) = (span.span_context.trace_id(), span.span_context.span_id());
            println!("span {trace} {id} parent {} {}", span.parent_span_id, span.name);
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> HandlerResult<()> {
    let Options { delay, listen, backend } = Options::parse();
    let provider = SdkTracerProvider::builder().with_simple_exporter(Print).build();
    global::set_tracer_provider(provider.clone());

    let dq = Dq::builder().url(&backend).propagator(CurrentSpan).connect().await?;
    let orders = Orders { dq: dq.clone(), delay: Duration::from_millis(delay) };
    let app = Router::new().route("/orders/{id}", post(place)).with_state(orders);
    let listener = TcpListener::bind(&listen).await?;
    println!("listening on http://{}", listener.local_addr()?);

    let server = serve(listener, app).with_graceful_shutdown(async {
        let _ = dq::shutdown_signal().await;
    });
    let server = async { HandlerResult::Ok(server.await?) };
    let runner = dq.runner().middleware(Traced).run_until(dq::shutdown_signal());
    tokio::try_join!(server, async { Ok(runner.await?) })?;
    dq.close().await?;
    Ok(provider.shutdown()?)
}
