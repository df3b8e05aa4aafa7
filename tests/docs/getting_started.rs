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
        let scheduled = dq.schedule::<welcome_mail>(mail).after(10.seconds()).await?;
        println!("the mail goes out at {}", scheduled.due());

        dq.runner().run_until(dq::shutdown_signal()).await
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
        let _ = dq.schedule::<WELCOME_MAIL>(Welcome { email }).after(1.hours()).await?;
        Ok(())
    }
}

mod web {
    use dq::prelude::*;

    async fn serve(dq: Dq, listener: tokio::net::TcpListener) -> Result<(), dq::BoxError> {
        let runner = dq.runner().build()?; // fails here if a handler lacks its state
        let app = axum::Router::new().with_state(dq);
        let server = axum::serve(listener, app).with_graceful_shutdown(dq::shutdown_signal());
        let server = async { server.await.map_err(dq::BoxError::from) };
        let runner = async { Ok(runner.run_until(dq::shutdown_signal()).await?) };
        tokio::try_join!(server, runner)?; // if one fails, so does the program
        Ok(())
    }
}
