//! Guide: handlers.

mod arguments {
    use dq::FencingToken;
    use dq::prelude::*;

    #[derive(Clone)]
    struct Shop;

    impl Shop {
        async fn ship(&self, _order: u64, _token: FencingToken) -> Result<(), std::io::Error> {
            Ok(())
        }
    }

    #[derive(serde::Deserialize)]
    struct Order {
        id: u64,
    }

    #[delay_handler("SHIP_ORDER")]
    async fn ship_order(ctx: JobContext, State(shop): State<Shop>, order: Order) -> HandlerResult {
        shop.ship(order.id, ctx.fencing_token()).await?;
        Ok(Outcome::Done)
    }
}

mod extractors {
    use dq::prelude::*;

    struct Tenant(String);

    impl FromJob for Tenant {
        async fn from_job(ctx: &JobContext) -> Result<Self, dq::BoxError> {
            Ok(Tenant(ctx.headers().get("tenant").ok_or("no tenant header")?.to_owned()))
        }
    }

    #[delay_handler("SEND_REPORT")]
    async fn send_report(Tenant(tenant): Tenant, report: u64) {
        println!("report {report} goes to {tenant}");
    }
}

mod steps {
    use dq::prelude::*;

    #[derive(Clone)]
    struct Shop;

    impl Shop {
        async fn is_paid(&self, _invoice: u64) -> Result<bool, std::io::Error> {
            Ok(false)
        }

        async fn send_reminder(&self, _invoice: u64) -> Result<(), std::io::Error> {
            Ok(())
        }

        async fn hand_over_to_collection(&self, _invoice: u64) -> Result<(), std::io::Error> {
            Ok(())
        }
    }

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Invoice {
        number: u64,
        reminders: u32,
    }

    #[delay_handler("UNPAID_INVOICE")]
    async fn unpaid_invoice(State(shop): State<Shop>, invoice: Invoice) -> HandlerResult {
        if shop.is_paid(invoice.number).await? {
            return Ok(Outcome::skip("it is paid"));
        }
        if invoice.reminders == 3 {
            shop.hand_over_to_collection(invoice.number).await?;
            return Ok(Outcome::Done);
        }
        shop.send_reminder(invoice.number).await?;
        let next = Invoice { reminders: invoice.reminders + 1, ..invoice };
        Ok(Outcome::again(7.days(), &next)?)
    }
}

mod retries {
    use dq::prelude::*;

    type PaymentError = std::io::Error;

    #[derive(serde::Deserialize)]
    struct Charge;

    impl Charge {
        async fn perform(&self) -> Result<(), PaymentError> {
            Ok(())
        }
    }

    #[delay_handler(
        "CHARGE",
        max_attempts = 8,
        timeout = "30s",
        lease = "1m",
        backoff(initial = "5s", factor = 3.0, max = "1h", jitter = 0.3)
    )]
    async fn charge(charge: Charge) -> Result<(), PaymentError> {
        charge.perform().await
    }
}

mod blocking {
    use dq::prelude::*;

    #[derive(Debug)]
    enum ImageError {
        Interrupted,
    }

    impl std::fmt::Display for ImageError {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("interrupted")
        }
    }

    impl std::error::Error for ImageError {}

    #[derive(serde::Deserialize)]
    struct Image;

    struct Step;

    impl Image {
        fn steps(&self) -> [Step; 2] {
            [Step, Step]
        }
    }

    impl Step {
        fn run(self) -> Result<(), ImageError> {
            Ok(())
        }
    }

    #[delay_handler("RESIZE", blocking)]
    fn resize(ctx: JobContext, image: Image) -> Result<(), ImageError> {
        for step in image.steps() {
            if ctx.is_cancelled() {
                return Err(ImageError::Interrupted);
            }
            step.run()?;
        }
        Ok(())
    }
}

mod objects {
    use dq::prelude::*;

    #[derive(serde::Deserialize)]
    struct Mail {
        to: String,
    }

    struct Mailer {
        from: String,
    }

    impl DelayHandler for Mailer {
        type Payload = Mail;

        fn code(&self) -> impl QueueCode {
            "SEND_MAIL"
        }

        async fn handle(&self, _ctx: JobContext, mail: Mail) -> HandlerResult {
            println!("{} → {}", self.from, mail.to);
            Ok(Outcome::Done)
        }
    }

    fn runner(dq: &Dq) -> dq::RunnerBuilder {
        dq.runner().handler(Mailer { from: "shop@example.com".to_owned() })
    }
}

mod enums {
    use dq::prelude::*;

    #[derive(QueueCode)]
    enum Code {
        #[queue_code("AI_QUEUE_RECORD_EXPIRED")]
        RecordExpired,
    }

    #[delay_handler(Code::RecordExpired)]
    async fn record_expired(record: u64) {
        println!("record {record} has expired");
    }
}

mod middleware {
    use dq::prelude::*;

    struct Announce;

    #[dq::async_trait]
    impl dq::Middleware for Announce {
        async fn call(&self, job: JobContext, next: dq::Next<'_>) -> dq::JobResult {
            println!("{} starts", job.queue());
            next.run(job).await
        }
    }

    fn with_alerts(dq: &Dq) -> dq::RunnerBuilder {
        dq.runner().middleware(Announce).observer(|event: &dq::Event<'_>| {
            if let dq::Event::Dead { job, reason } = event {
                eprintln!("job {} of {} is dead: {reason}", job.id, job.queue);
            }
        })
    }
}
