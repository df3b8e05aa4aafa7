//! Middleware for every request: authentication, origin check, body limits, response headers.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{OriginalUri, Request, State};
use axum::http::header::{
    self, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, HOST, LOCATION, ORIGIN,
    WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use dq_ops::{OpsError, Role};

use crate::api::is_for_workers;
use crate::app::App;
use crate::auth::Auth;
use crate::problem::Problem;

/// Maximum body length: a 1 MiB payload in Base64 and the JSON around it.
const MAX_BODY: usize = 2 * 1024 * 1024;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(20);

/// Everything comes from this server, nothing is inline, and no other site may embed a page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; \
    require-trusted-types-for 'script'";

/// Passes on a request with its session, or refuses it: its actor is unknown, it comes from another
/// site, or its body is too long or too slow.
pub(crate) async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let Some(actor) = app.auth().authenticate(request.headers()).await else {
        return unauthenticated(app.auth(), request.headers());
    };
    if actor.role() == Role::Worker && !is_for_workers(request.uri().path()) {
        let needs = if request.method().is_safe() { Role::Viewer } else { Role::Operator };
        let forbidden = OpsError::Forbidden { needs, has: Role::Worker };
        return Problem::from(forbidden).into_response();
    }
    request.extensions_mut().insert(app.ops().session(actor));
    if let Some(location) = with_slash(&request) {
        return (StatusCode::PERMANENT_REDIRECT, [(LOCATION, location)]).into_response();
    }
    if request.method().is_safe() {
        return next.run(request).await;
    }
    if !is_same_origin(request.headers()) {
        return Problem::new(
            StatusCode::FORBIDDEN,
            "forbidden",
            "the request comes from another site",
        )
        .remedy("behind a proxy, pass the header Host on as the browser sends it")
        .into_response();
    }
    match read_body(request).await {
        Ok(request) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

pub(crate) async fn with_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // With `no-referrer`, browsers send `Origin: null` with this server's own forms.
        (header::REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn unauthenticated(auth: &Auth, headers: &HeaderMap) -> Response {
    if let Some(host) = auth.refused_host(headers) {
        // With 401, a browser asks for the token again.
        let message = format!(
            "the token is right, but counts on this machine only, and the request is for the host {host:?}"
        );
        let problem = Problem::new(StatusCode::FORBIDDEN, "wrong host", message).remedy(
            "open the server as 127.0.0.1 or localhost; for another name, set DQ_TOKEN or \
             [serve.tokens] where it starts, or give `dq_web::router` other `Auth` than `loopback`",
        );
        return problem.into_response();
    }
    let problem = Problem::new(
        StatusCode::UNAUTHORIZED,
        "unauthenticated",
        "the request has no password or token, or a wrong one",
    );
    if !auth.asks() {
        return problem.into_response();
    }
    let problem = problem.remedy(
        "send `authorization: Bearer TOKEN`, or name and password (HTTP Basic); `dq` takes the token \
         from DQ_TOKEN or --token",
    );
    ([(WWW_AUTHENTICATE, r#"Basic realm="dq", charset="UTF-8""#)], problem).into_response()
}

/// Returns the address to redirect to if the router's own address lacks its final slash. Without
/// the slash, relative addresses on the page lead elsewhere.
fn with_slash(request: &Request) -> Option<String> {
    let original = &request.extensions().get::<OriginalUri>()?.0;
    if request.uri().path() != "/" || original.path().ends_with('/') {
        return None;
    }
    let last = original.path().rsplit('/').next()?;
    let query = original.query().map(|query| format!("?{query}")).unwrap_or_default();
    // Without `./`, a name with a colon looks like a scheme.
    Some(format!("./{last}/{query}"))
}

/// Whether a change comes from this server's pages or from a program. Browsers send these headers,
/// programs need not.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(site) = text(HeaderName::from_static("sec-fetch-site")) {
        return matches!(site, "same-origin" | "none");
    }
    let Some(origin) = text(ORIGIN) else { return true };
    let Some((_, authority)) = origin.split_once("://") else { return false };
    // Another site's page cannot set the second header.
    let names = [text(HOST), text(HeaderName::from_static("x-forwarded-host"))];
    names.into_iter().flatten().any(|host| host.eq_ignore_ascii_case(authority))
}

/// Marks a request of this process; its body has no limit. A client cannot send it.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct InProcess;

/// Reads the whole body, so that handlers never wait for a slow or endless one.
async fn read_body(request: Request) -> Result<Request, Problem> {
    let (parts, body) = request.into_parts();
    if parts.extensions.get::<InProcess>().is_some() {
        return Ok(Request::from_parts(parts, body));
    }
    let too_large = || {
        Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too large",
            format!("the body has more than {MAX_BODY} bytes"),
        )
    };
    let length = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length: Option<usize> = length.and_then(|length| length.parse().ok());
    if length.is_some_and(|length| length > MAX_BODY) {
        return Err(too_large());
    }
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_BODY)).await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(parts, Body::from(bytes))),
        Ok(Err(_)) => Err(too_large()),
        Err(_) => Err(Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_that_does_not_end_is_refused() {
        let request = |body| Request::builder().method("POST").body(body).unwrap();
        let endless =
            futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![0; 65_536]));
        let refused = read_body(request(Body::from_stream(endless))).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert!(read_body(request(Body::from("small"))).await.is_ok());
    }

    #[test]
    fn changes_from_other_sites_are_refused() {
        let host = ("host", "dq.example:8080");
        let own_origin = ("origin", "http://dq.example:8080");
        for (headers, is_allowed) in [
            (vec![host], true),
            (vec![host, own_origin], true),
            (vec![("host", "h"), ("x-forwarded-host", "a"), ("origin", "https://a")], true),
            (vec![host, ("sec-fetch-site", "same-origin"), ("origin", "null")], true),
            (vec![host, ("origin", "null")], false),
            (vec![host, ("origin", "http://dq.example")], false),
            (vec![host, ("origin", "http://evil.example")], false),
            (vec![host, ("sec-fetch-site", "cross-site"), own_origin], false),
            (vec![host, ("sec-fetch-site", "same-site"), own_origin], false),
            (vec![host, ("sec-fetch-site", ""), own_origin], false),
        ] {
            let headers = headers.into_iter();
            let map: HeaderMap = headers
                .clone()
                .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
                .collect();
            assert_eq!(is_same_origin(&map), is_allowed, "{headers:?}");
        }
    }
}
