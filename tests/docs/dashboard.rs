//! Guide: dashboard.

use dq::prelude::*;
use dq_ops::{Actor, Ops, Role};
use dq_web::Auth;

fn with_dashboard(dq: Dq, token: String) -> dq::Result<axum::Router> {
    let auth = Auth::token(Actor::new("ops", Role::Admin), token)?;
    let dashboard = dq_web::router(Ops::new(dq), auth);
    Ok(axum::Router::new().nest_service("/ops/dq", dashboard))
}

async fn with_actix(dq: Dq, token: String) -> Result<(), dq::BoxError> {
    let auth = Auth::token(Actor::new("ops", Role::Admin), token)?;
    let dashboard = dq_web::router(Ops::new(dq), auth);
    let app = move || {
        let scope = dq_web::actix::scope("/ops/dq", dashboard.clone());
        actix_web::App::new().service(scope)
    };
    actix_web::HttpServer::new(app).bind("127.0.0.1:3000")?.run().await?;
    Ok(())
}

async fn serve(dq: Dq) -> Result<(), dq::BoxError> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8710").await?;
    let auth = Auth::loopback();
    if let Some(token) = auth.generated_token() {
        println!("http://dq:{token}@{}/", listener.local_addr()?);
    }
    dq_web::serve(listener, Ops::new(dq), auth, dq::shutdown_signal()).await?;
    Ok(())
}

fn redacted(dq: Dq) -> Ops {
    Ops::builder(dq)
        .redact(|content| {
            if content.queue.as_str() == "SEND_MAIL" {
                content.payload = "\"hidden\"".into();
            }
            content.headers.remove("authorization");
        })
        .build()
}
