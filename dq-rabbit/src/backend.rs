//! The backend: each call goes to the log, and what it means for messages to the carriers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dq_core::config::Environment;
use dq_core::{
    Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed, Finding, JobRef, JobView,
    Listeners, NewJob, OperateReport, Operation, Page, QueueName, QueueStats, Renewal, Renewed,
    Reschedule, Rescheduled, Result, Scheduled, Settled, Settlement, Timestamp, Wakeups,
};

use tokio_util::task::AbortOnDropHandle;

use crate::arrive::Arrivals;
use crate::carrier::{Courier, Inbox, SPAN};
use crate::check::Inspector;
use crate::config::{QueueKind, RabbitConfig, TopologyMode};
use crate::connect::{Link, Server};
use crate::desk::Desk;
use crate::error::closed;
use crate::ladder::Ladder;
use crate::log::{CLAIM_AHEAD, Log, LogSettings};
use crate::management::Management;
use crate::topology::Topology;

/// Delayed jobs in RabbitMQ.
#[derive(Debug)]
pub struct RabbitBackend {
    _sweep: AbortOnDropHandle<()>,
    desk: Arc<Desk>,
    inbox: Inbox<Arrivals>,
    listeners: Arc<Listeners>,
    publish: Arc<Link>,
    consume: Arc<Link>,
    topology: Arc<Topology>,
    queues: QueueKind,
    mode: TopologyMode,
    management: Option<Management>,
}

impl RabbitBackend {
    /// Connects, declares what is needed, and reads the log.
    ///
    /// # Errors
    /// `Config` for settings, credentials or rights that will not do; `Unavailable`; `Incompatible` for
    /// a broker that is too old or has no streams, and for a log of a newer version.
    pub async fn connect(config: &RabbitConfig, environment: &Environment) -> Result<Self> {
        config.validate()?;
        let server = Arc::new(Server::new(&config.server(), Arc::clone(&environment.entropy))?);
        let publish = Arc::new(Link::start(Arc::clone(&server), "publish"));
        let consume = Arc::new(Link::start(Arc::clone(&server), "consume"));
        let topology = Arc::new(Topology::new(Arc::clone(&publish), config));
        topology.prepare().await?;
        let listeners = Arc::new(Listeners::default());
        let settings = LogSettings {
            response_timeout: config.response_timeout,
            size: config.log_bytes().unsigned_abs(),
        };
        let log = Log::open(
            settings,
            environment,
            Arc::clone(&topology),
            Arc::clone(&publish),
            Arc::clone(&consume),
            Arc::clone(&listeners),
        )
        .await?;
        let courier = Arc::new(Courier::new(Arc::clone(&publish), Arc::clone(&topology)));
        let early = Duration::from_millis(Ladder::early_ms(config.queues).unsigned_abs()) + SPAN;
        let desk = Arc::new(Desk::new(log, courier, Arc::clone(&environment.entropy), early));
        let arrivals = Arc::new(Arrivals {
            desk: Arc::clone(&desk),
            listeners: Arc::clone(&listeners),
            names: topology.names().clone(),
        });
        let clock = Arc::clone(&environment.clock);
        let sweep = tokio::spawn(Arrivals::sweep(Arc::downgrade(&arrivals), clock));
        let inbox = Inbox::new(
            server,
            Arc::clone(&topology),
            Arc::clone(&environment.clock),
            config.prefetch,
            arrivals,
        );
        let management = config.management.clone();
        Ok(Self {
            _sweep: AbortOnDropHandle::new(sweep),
            desk,
            inbox,
            listeners,
            publish,
            consume,
            topology,
            queues: config.queues,
            mode: config.topology,
            management: management.map(|url| Management::new(url, config.ca.clone())),
        })
    }

    fn ensure_open(&self, operation: &'static str) -> Result<()> {
        if self.desk.log.is_closed() {
            return Err(closed(operation));
        }
        Ok(())
    }
}

#[async_trait]
impl Backend for RabbitBackend {
    fn name(&self) -> &'static str {
        "rabbitmq"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        // Of jobs that are due at the same time, those whose carriers are here go first.
        capabilities.fifo = false;
        capabilities
    }

    async fn now(&self) -> Result<Timestamp> {
        self.ensure_open("now")?;
        Ok(self.desk.log.now())
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.ensure_open("schedule")?;
        self.desk.schedule(jobs).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.desk.cancel(jobs).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.desk.reschedule(moves).await
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        self.ensure_open("listen")?;
        for queue in queues {
            self.inbox.serve(queue);
        }
        Ok(self.listeners.listen(queues))
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.ensure_open("claim")?;
        if params.limit == 0 || params.wants.iter().all(|want| want.max == 0) {
            return Ok(self.desk.look(&params));
        }
        for want in params.wants {
            self.inbox.serve(&want.queue);
        }
        self.desk.claim(&params).await
    }

    fn claim_ahead(&self) -> Duration {
        CLAIM_AHEAD
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.desk.settle(settlements).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.desk.renew(renewals).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.desk.stats(queues).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.desk.browse(&params).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.desk.get(job).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.desk.operate(operation).await
    }

    async fn check(&self) -> Vec<Finding> {
        let inspector = Inspector {
            link: &self.publish,
            topology: &self.topology,
            queues: self.queues,
            mode: self.mode,
            management: self.management.as_ref(),
            clock: self.desk.log.clock(),
            carried: self.desk.carried(),
            log_is_full: self.desk.log.is_full(),
        };
        inspector.findings().await
    }

    async fn close(&self) -> Result<()> {
        self.inbox.close().await;
        self.desk.courier.close().await;
        self.desk.log.close().await;
        tokio::join!(self.publish.close(), self.consume.close());
        Ok(())
    }
}
