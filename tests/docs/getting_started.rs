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

        dq.runner().run_until(tokio::signal::ctrl_c()).await
    }
}

mod producer {
    use dq::prelude::*;

    #[derive(serde::Serialize)]
    struct Welcome {
        email: String,
    }

    dq::queue!(WELCOME_MAIL: Welcome);

    async fn on_sign_up(dq: &Dq, email: String) -> dq::Result<()> {
        dq.schedule::<WELCOME_MAIL>(Welcome { email }).after(1.hours()).await?;
        Ok(())
    }
}

mod web {
    use std::error::Error;

    use dq::prelude::*;

    async fn serve(dq: Dq, listener: tokio::net::TcpListener) -> Result<(), Box<dyn Error>> {
        let (stop, stopped) = tokio::sync::watch::channel(());
        let wait = |mut stopped: tokio::sync::watch::Receiver<()>| async move {
            stopped.changed().await.ok();
        };
        let app = axum::Router::new().with_state(dq.clone());
        let server = axum::serve(listener, app).with_graceful_shutdown(wait(stopped.clone()));
        let runner = dq.runner().build()?; // fails here if a handler lacks its state
        let runner = runner.run_until(wait(stopped));

        tokio::spawn(async move {
            tokio::signal::ctrl_c().await.ok();
            stop.send(()).ok();
        });
        let (server, runner) = tokio::join!(server, runner);
        server?;
        Ok(runner?)
    }
}
