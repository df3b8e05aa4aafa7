use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dq_core::config::{BackendConfig, Environment};
use dq_core::{
    Announced, Announcement, Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed,
    Finding, JobRef, JobView, Listeners, NewJob, OperateReport, Operation, Page, QueueName,
    QueueStats, Renewal, Renewed, Reschedule, Rescheduled, Result, Scheduled, Settled, Settlement,
    Timestamp, Wakeups,
};

use crate::check::BrokerCheck;
use crate::check::findings::check_failed;
use crate::check::management::ManagementApi;
use crate::config::RabbitConfig;
use crate::connect::{AmqpConnection, Broker};
use crate::engine::Engine;
use crate::error::{closed, may_pass};
use crate::log::CLAIM_AHEAD;
use crate::member::{Member, MemberContext};
use crate::topology::Topology;

/// A backend that keeps delayed jobs in RabbitMQ.
#[derive(Debug)]
pub struct RabbitBackend {
    context: MemberContext,
    member: Member,
    is_closed: AtomicBool,
}

impl RabbitBackend {
    /// Connects, declares exchanges and queues, and reads the log.
    ///
    /// # Errors
    /// `Config` for invalid settings, wrong credentials or missing permissions; `Unavailable` if
    /// the broker cannot be reached or does not reply; `Incompatible` if the broker is too old or
    /// has no streams, or the log was written by a newer version.
    pub async fn connect(config: &RabbitConfig, environment: &Environment) -> Result<Self> {
        config.validate()?;
        let broker = Arc::new(Broker::new(&config.broker()?, Arc::clone(&environment.entropy))?);
        let publish = Arc::new(AmqpConnection::start(Arc::clone(&broker), "publish"));
        let topology = Arc::new(Topology::new(Arc::clone(&publish), config));
        let management = config
            .management
            .clone()
            .map(|url| ManagementApi::new(url, broker.vhost().to_owned(), config.ca.clone()));
        let context = MemberContext {
            config: config.clone(),
            environment: environment.clone(),
            broker,
            publish,
            topology,
            listeners: Arc::new(Listeners::default()),
            management,
        };
        let member = Member::open(&context).await?;
        Ok(Self { context, member, is_closed: AtomicBool::new(false) })
    }

    #[cfg(test)]
    pub(crate) fn log(&self) -> &crate::log::Log {
        &self.member.engine.log
    }

    /// # Errors
    /// `Closed` after `close`; the log's error if it cannot be read any further.
    fn member(&self, operation: &'static str) -> Result<&Member> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed(operation));
        }
        self.member.engine.log.failure(operation).map_or(Ok(&self.member), Err)
    }

    fn engine(&self, operation: &'static str) -> Result<&Arc<Engine>> {
        Ok(&self.member(operation)?.engine)
    }
}

#[async_trait]
impl Backend for RabbitBackend {
    fn name(&self) -> &'static str {
        "rabbitmq"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        // Among jobs with the same due time, a process first claims the ones that it has payloads
        // for.
        capabilities.fifo = false;
        capabilities
    }

    async fn now(&self) -> Result<Timestamp> {
        self.member("now")?;
        Ok(self.context.environment.clock.now())
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.engine("schedule")?.schedule(jobs).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.engine("cancel")?.cancel(jobs).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.engine("reschedule")?.reschedule(moves).await
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        let member = self.member("listen")?;
        for queue in queues {
            member.engine.payloads.serve(queue);
            member.consumer.consume(queue);
        }
        Ok(self.context.listeners.listen(queues))
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let member = self.member("claim")?;
        if params.limit == 0 || params.wants.iter().all(|want| want.max == 0) {
            return Ok(member.engine.empty_claim(&params));
        }
        for want in params.wants {
            member.engine.payloads.serve(&want.queue);
            member.consumer.consume(&want.queue);
        }
        if let Some(loss) = member.engine.log.take_loss() {
            return Err(loss);
        }
        match member.engine.claim(&params).await {
            // `Incompatible` ends the runner for good.
            Err(error) if member.engine.log.failure("claim").is_none() => Err(may_pass(error)),
            claimed => claimed,
        }
    }

    fn claim_ahead(&self) -> Duration {
        CLAIM_AHEAD
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.engine("settle")?.settle(settlements).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.engine("renew")?.renew(renewals).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.engine("stats")?.stats(queues).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.engine("browse")?.browse(&params).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.engine("get")?.get(job).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.engine("operate")?.operate(operation).await
    }

    async fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Result<Vec<u64>> {
        self.engine("forecast")?.forecast(queue, edges).await
    }

    async fn announce(&self, announcement: Announcement) -> Result<()> {
        self.engine("announce")?.announce(announcement).await
    }

    async fn runners(&self) -> Result<Vec<Announced>> {
        self.engine("runners")?.runners().await
    }

    async fn check(&self) -> Vec<Finding> {
        let failure = self.member("check").err().map(|error| check_failed(&error));
        if self.is_closed.load(Ordering::Acquire) {
            return failure.into_iter().collect();
        }
        let Self { context, member, .. } = self;
        let check = BrokerCheck {
            connection: &context.publish,
            topology: &context.topology,
            config: &context.config,
            management: context.management.as_ref(),
            entropy: &context.environment.entropy,
            engine: &member.engine,
        };
        let mut findings = check.findings().await;
        let is_told = |code| findings.iter().any(|finding| finding.code == code);
        findings.extend(failure.filter(|failure| !is_told(failure.code)));
        findings
    }

    async fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Release);
        let closed = self.member.close().await;
        self.context.publish.close().await;
        closed
    }
}

#[typetag::deserialize(name = "rabbitmq")]
#[async_trait]
impl BackendConfig for RabbitConfig {
    async fn connect(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(RabbitBackend::connect(self, environment).await?))
    }
}

dq_core::register_backend! {
    name: "rabbitmq",
    settings: RabbitConfig,
    schemes: ["amqp", "amqps", "rabbitmq", "rabbitmqs"],
    from_url: |url| Ok(Box::new(RabbitConfig::from_url(url)?)),
}
