//! `opentelemetry`: request, job and handler are spans in one trace.

use crate::program::Program;
use crate::server::{Server, request};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";
const NO_PARENT: &str = "0000000000000000";

fn place(service: &Server, order: u64, header: &str) {
    let placed = request(&service.address, "POST", &format!("/orders/{order}"), header);
    let (_, reply) = placed.expect("the service answers");
    let reply = reply.as_str().unwrap();
    assert!(reply.starts_with(&format!("order {order} is closed at 20")), "{reply}");
}

/// A line `span TRACE ID parent PARENT NAME`.
#[derive(Debug)]
struct Span {
    trace: String,
    id: String,
    parent: String,
    name: String,
}

/// One order's spans: request, job, and handler work. They end in any order, because the request
/// may be answered after the job has run.
fn spans(program: &Program) -> [Span; 3] {
    let mut spans = Vec::new();
    while spans.len() < 3 {
        let line = program.line().expect("the service runs");
        let Some(span) = line.strip_prefix("span ") else { continue };
        let words: Vec<_> = span.splitn(5, ' ').collect();
        let [trace, id, "parent", parent, name] = words[..] else { panic!("{line}") };
        let [trace, id, parent, name] = [trace, id, parent, name].map(str::to_owned);
        spans.push(Span { trace, id, parent, name });
    }
    ["POST /orders/{id}", "CLOSE_ORDER", "look for a payment"].map(|name| {
        let found = spans.iter().position(|span| span.name == name);
        spans.swap_remove(found.unwrap_or_else(|| panic!("no span {name:?} in {spans:?}")))
    })
}

#[test]
fn request_job_and_handler_are_spans_of_one_trace() {
    let dir = tempfile::tempdir().unwrap();
    let service = Server::start("opentelemetry", dir.path(), &["--delay", "300"]);

    place(&service, 17, &format!("traceparent: 00-{TRACE}-{CALLER}-01\r\n"));
    let [request, job, payment] = spans(&service.program);
    assert_eq!(request.parent, CALLER);
    assert_eq!((&job.parent, &payment.parent), (&request.id, &job.id));
    for span in [&request, &payment, &job] {
        assert_eq!(span.trace, TRACE, "{span:?}");
    }

    // Without a caller's trace, the request begins one.
    place(&service, 18, "");
    let [request, job, payment] = spans(&service.program);
    assert_eq!((&*request.parent, &job.parent), (NO_PARENT, &request.id));
    assert!(request.trace != TRACE && job.trace == request.trace && payment.trace == job.trace);
}
