//! The router in an actix-web application.

use std::io;

use actix_web::body::{BodyStream, SizedStream};
use actix_web::{HttpRequest, HttpResponse, Scope, web};
use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::OriginalUri;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderName, HeaderValue, Method, Request, Response, Uri};
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use tokio::sync::mpsc;

/// Returns the [`router`](crate::router) as an actix-web scope.
///
/// Create one router, and clone it for each worker of your server.
///
/// ```no_run
/// # async fn serve(ops: dq_ops::Ops, auth: dq_web::Auth) -> std::io::Result<()> {
/// let router = dq_web::router(ops, auth);
/// let app = move || {
///     actix_web::App::new().service(dq_web::actix::scope("/ops/dq", router.clone()))
/// };
/// actix_web::HttpServer::new(app).bind("127.0.0.1:3000")?.run().await
/// # }
/// ```
///
/// An open page reconnects for events every 15 s. When the server stops, actix closes that
/// connection after its `shutdown_timeout`.
pub fn scope(prefix: &str, router: Router) -> Scope {
    let handler = move |request: HttpRequest, payload: web::Payload| {
        let router = TowerToHyperService::new(router.clone());
        async move {
            let Some(request) = request_of(&request, payload) else {
                return HttpResponse::BadRequest().finish();
            };
            let is_head = *request.method() == Method::HEAD;
            match router.call(request).await {
                Ok(response) => response_of(response, is_head),
                Err(never) => match never {},
            }
        }
    };
    web::scope(prefix.trim_end_matches('/')).default_service(web::to(handler))
}

/// Converts the request and strips the prefix; `None` if `http` cannot express it.
fn request_of(actix: &HttpRequest, payload: web::Payload) -> Option<Request<Body>> {
    let original: Uri = actix.uri().to_string().parse().ok()?;
    let matched = actix.match_info();
    let prefix = matched.as_str().strip_suffix(matched.unprocessed())?;
    let segments = prefix.matches('/').count();
    let mut request = Request::builder()
        .method(Method::from_bytes(actix.method().as_str().as_bytes()).ok()?)
        .uri(without_prefix(&original, segments)?)
        .extension(OriginalUri(original));
    let headers = request.headers_mut()?;
    for (name, value) in actix.headers() {
        headers.append(
            HeaderName::from_bytes(name.as_str().as_bytes()).ok()?,
            HeaderValue::from_bytes(value.as_bytes()).ok()?,
        );
    }
    request.body(body_of(payload)).ok()
}

/// Strips the first segments. They are counted in the path that actix matched, which is partly
/// decoded, except for its slashes.
fn without_prefix(original: &Uri, segments: usize) -> Option<Uri> {
    let path = original.path();
    let rest = match path.match_indices('/').nth(segments) {
        Some((position, _)) => &path[position..],
        None => "/",
    };
    let query = original.query().map(|query| format!("?{query}")).unwrap_or_default();
    Uri::builder().path_and_query(format!("{rest}{query}")).build().ok()
}

/// An actix body is bound to its thread, so a task there forwards it.
fn body_of(payload: web::Payload) -> Body {
    let (sender, receiver) = mpsc::channel(1);
    actix_web::rt::spawn(async move {
        let mut payload = payload.into_inner();
        while let Some(part) = payload.next().await {
            let part = part.map_err(|error| io::Error::other(error.to_string()));
            // Fails if the request was answered without its body.
            if sender.send(part).await.is_err() {
                return;
            }
        }
    });
    let parts = unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    Body::from_stream(parts)
}

/// Converts the response. One to `HEAD` has no body.
fn response_of(response: Response<Body>, is_head: bool) -> HttpResponse {
    let (parts, body) = response.into_parts();
    let status = actix_web::http::StatusCode::from_u16(parts.status.as_u16());
    let Ok(status) = status else { return HttpResponse::InternalServerError().finish() };
    let mut response = HttpResponse::build(status);
    for (name, value) in &parts.headers {
        // The server writes the length itself.
        if name != CONTENT_LENGTH {
            response.append_header((name.as_str(), value.as_bytes()));
        }
    }
    if is_head {
        return response.body(actix_web::body::None::new());
    }
    let size = body.size_hint().exact();
    let stream = body.into_data_stream();
    match size {
        Some(size) => response.body(SizedStream::new(size, stream)),
        None => response.body(BodyStream::new(stream)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_an_address_stays_as_it_was_sent() {
        let rest = |uri: &str, segments| {
            without_prefix(&uri.parse().unwrap(), segments).unwrap().to_string()
        };
        assert_eq!(rest("/ops/dq", 2), "/");
        assert_eq!(rest("/ops/dq?lang=zh", 2), "/?lang=zh");
        assert_eq!(rest("/ops/dq/", 2), "/");
        assert_eq!(
            rest("/%6fps/dq/v1/queues/a%2F..%2Fb%3Fc?x=%20", 2),
            "/v1/queues/a%2F..%2Fb%3Fc?x=%20"
        );
        assert_eq!(rest("/v1", 0), "/v1");
        assert_eq!(rest("//v1", 0), "//v1");
        assert_eq!(rest("http://h:1/ops/v1", 1), "/v1");
    }
}
