//! Guide: getting started.

mod first {
    use dq::prelude::*;
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct Welcome {
        email: String,
    }

    #[delay_handler("WELCOME_MAIL")]
    async fn welcome_mail(mail: Welcome) {
        println!("welcome, {}", mail.email);
    }

    #[tokio::main]
    async fn main() -> dq::Result<()> {
        tracing_subscriber::fmt::init();
        let dq = Dq::connect("sqlite://jobs.db").await?;

        let mail = Welcome { email: "ada@example.com".to_owned() };
        dq.schedule::<welcome_mail>(mail).after(10.seconds()).await?;

        let ctrl_c = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
        dq.runner().run_until(ctrl_c).await
    }
}

mod producer {
    use dq::prelude::*;

    #[derive(serde::Serialize)]
    pub struct Welcome {
        email: String,
    }

    dq::queue!(pub WELCOME_MAIL: Welcome);

    async fn on_sign_up(dq: &Dq, email: String) -> dq::Result<()> {
        dq.schedule::<WELCOME_MAIL>(Welcome { email }).after(1.hours()).await?;
        Ok(())
    }
}

mod web {
    use dq::prelude::*;

    async fn serve(dq: Dq, listener: tokio::net::TcpListener) -> dq::Result<()> {
        let stop = tokio_util::sync::CancellationToken::new();
        let runner = dq.runner().run_until(stop.clone().cancelled_owned());
        let runner = tokio::spawn(runner);

        let app = axum::Router::new().with_state(dq);
        let server = axum::serve(listener, app).with_graceful_shutdown(async {
            tokio::signal::ctrl_c().await.unwrap_or_default();
        });
        server.await.expect("axum's server does not fail");

        stop.cancel();
        runner.await.expect("the runner does not panic")
    }
}
