//! Implements the trait [`Backend`], and registers the backend by name and URL schemes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dq_core::config::{BackendConfig, Environment};
use dq_core::machine::OwnedOperation;
use dq_core::{
    Announced, Announcement, Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed,
    Error, ErrorKind, Finding, JobRef, JobView, Listeners, NewJob, OperateReport, Operation, Page,
    QueueName, QueueStats, Renewal, Renewed, Reschedule, Rescheduled, Result, Scheduled, Settled,
    Settlement, Timestamp, Wakeups,
};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::check::BrokerCheck;
use crate::config::{RabbitConfig, ReplicaMode};
use crate::connect::{AmqpConnection, Broker};
use crate::engine::Engine;
use crate::entries::part;
use crate::error::{closed, may_pass};
use crate::findings::check_failed;
use crate::log::{CLAIM_AHEAD, LevelSettings, Log};
use crate::management::ManagementApi;
use crate::member::{Member, MemberContext};
use crate::opening::Opening;
use crate::process::Process;
use crate::remote::{Answer, NotServed, PAGE_ITEMS, RemoteClient, Reply, Request, pages};
use crate::topology::Topology;

/// A backend that keeps delayed jobs in RabbitMQ.
#[derive(Debug)]
pub struct RabbitBackend {
    process: Arc<Process>,
}

impl RabbitBackend {
    /// Connects. If another process with a replica of the log serves this one, or is about to, that
    /// is all, unless `config.replica` is [`Eager`](ReplicaMode::Eager); else declares exchanges and
    /// queues, and reads the log.
    ///
    /// # Errors
    /// `Config` for invalid settings, wrong credentials or missing permissions; `Unavailable` if
    /// the broker cannot be reached or does not reply; `Incompatible` if the broker is too old or
    /// has no streams, or the log was written by a newer version. A light process reports those of
    /// the log when it opens it.
    pub async fn connect(config: &RabbitConfig, environment: &Environment) -> Result<Self> {
        Self::connect_with_levels(config, environment, LevelSettings::default()).await
    }

    /// Connects as a version that understands these levels of the log.
    pub(crate) async fn connect_with_levels(
        config: &RabbitConfig,
        environment: &Environment,
        levels: LevelSettings,
    ) -> Result<Self> {
        config.validate()?;
        let broker = Arc::new(Broker::new(&config.broker()?, Arc::clone(&environment.entropy))?);
        let publish = Arc::new(AmqpConnection::start(Arc::clone(&broker), "publish"));
        let topology = Arc::new(Topology::new(Arc::clone(&publish), config));
        let entropy = Arc::clone(&environment.entropy);
        let remote = RemoteClient::new(Arc::clone(&publish), topology.names().clone(), entropy);
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
            levels,
        };
        let process = Process {
            context,
            remote,
            member: OnceCell::new(),
            opening: Opening::default(),
            turn: Opening::default(),
            is_closed: AtomicBool::new(false),
            stop: CancellationToken::new(),
        };
        let backend = Self { process: Arc::new(process) };
        if config.replica == ReplicaMode::Eager || !backend.connect_light().await? {
            backend.member("connect").await?;
        }
        Ok(backend)
    }

    /// Tries to be served by another process. Returns `false` if that is not possible.
    async fn connect_light(&self) -> Result<bool> {
        let limits = Request::SetHistory((&self.process.context.environment.history).into());
        // A second time if another process has begun to serve.
        for _ in 0..2 {
            match self.request("connect", &limits).await {
                Ok(reply) => return Ok(reply.is_some()),
                // The process that serves may have died without the broker having noticed yet.
                Err(_) if self.process.remote.has_timed_out() => {
                    self.process.open_in_turn(NotServed::NobodyReplies, Duration::ZERO).await?;
                }
                Err(error) => return Err(error),
            }
            if !self.is_light() {
                break;
            }
        }
        Ok(false)
    }

    /// Whether this process has no replica.
    #[must_use]
    pub fn is_light(&self) -> bool {
        !self.process.member.initialized()
    }

    #[cfg(test)]
    pub(crate) fn log(&self) -> &Log {
        &self.process.member.get().expect("the log is open").engine.log
    }

    /// The level of the log that is in force.
    #[cfg(test)]
    pub(crate) fn level(&self) -> u16 {
        self.log().level()
    }

    /// The number of hellos of the live processes.
    #[cfg(test)]
    pub(crate) fn hellos(&self) -> u32 {
        let live = self.replica(|replica| replica.levels().live());
        live.iter().map(|process| process.renewals).sum()
    }

    /// The number of live processes.
    #[cfg(test)]
    pub(crate) fn live_processes(&self) -> usize {
        self.replica(|replica| replica.levels().live().len())
    }

    #[cfg(test)]
    fn replica<T>(&self, read: impl FnOnce(&mut crate::log::Replica) -> T) -> T {
        self.log().peek(read)
    }

    /// Fails after `close`, and if the log cannot be read any further.
    fn ensure_open(&self, operation: &'static str) -> Result<()> {
        if self.process.is_closed.load(Ordering::Acquire) {
            return Err(closed(operation));
        }
        let member = self.process.member.get();
        member.and_then(|member| member.engine.log.failure(operation)).map_or(Ok(()), Err)
    }

    /// What this process has with a replica; opens the log if it is light.
    async fn member(&self, operation: &'static str) -> Result<&Member> {
        self.ensure_open(operation)?;
        if let Some(member) = self.process.member.get() {
            return Ok(member);
        }
        self.process.open().await?;
        self.process.member.get().ok_or_else(|| closed(operation))
    }

    async fn engine(&self, operation: &'static str) -> Result<&Arc<Engine>> {
        Ok(&self.member(operation).await?.engine)
    }

    /// Makes a call: here if this process has a replica, else by a request. `reply` reads the reply
    /// to the request.
    async fn call<'a, T, F>(
        &'a self,
        operation: &'static str,
        request: impl FnOnce() -> Result<Request> + Send,
        reply: impl FnOnce(Reply) -> Option<T> + Send,
        here: impl FnOnce(&'a Arc<Engine>) -> F + Send,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        self.ensure_open(operation)?;
        if self.is_light() {
            let request = request().map_err(|error| error.operation(operation))?;
            if let Some(answer) = self.request(operation, &request).await? {
                return reply(answer).ok_or_else(|| mismatch(operation));
            }
        }
        here(self.engine(operation).await?).await
    }

    /// Sends a request and waits for its reply; `None` if this process has to make the call itself.
    async fn request(&self, operation: &'static str, request: &Request) -> Result<Option<Reply>> {
        let answered = self.request_in_turn(operation, request).await;
        let is_closed = self.process.is_closed.load(Ordering::Acquire);
        answered.map_err(|error| match error.kind() {
            // The call has found the channel closed, or nobody to wait for.
            ErrorKind::Unavailable | ErrorKind::OutcomeUnknown if is_closed => {
                closed(operation).source(error)
            }
            _ => error,
        })
    }

    /// As [`request`](Self::request). If nobody serves, waits until it is the turn of this process
    /// to open the log.
    async fn request_in_turn(
        &self,
        operation: &'static str,
        request: &Request,
    ) -> Result<Option<Reply>> {
        let Process { remote, .. } = &*self.process;
        // A second time if another process has begun to serve; this one does not chase a process
        // that comes and goes.
        for _ in 0..2 {
            let answer = match remote.call(operation, request).await? {
                Answer::Waits(pending) => {
                    tracing::debug!(operation, "a request waits, and nobody serves");
                    // The next call looks first whether somebody serves.
                    remote.retire().await;
                    let opening = async {
                        // From then on, this process serves, and gets its own request, unless that has
                        // expired. So there is no time to wait for others.
                        let reason = NotServed::NobodyServes;
                        let opening = self.process.open_in_turn(reason, Duration::ZERO);
                        if let Err(error) = opening.await {
                            // The next call returns this error, which does not say whether the
                            // request was executed.
                            tracing::warn!(%error, "the log cannot be opened");
                        }
                        std::future::pending().await
                    };
                    // Opening may take longer than this call, and goes on without it.
                    tokio::select! {
                        answer = remote.finish(pending) => answer?,
                        never = opening => never,
                    }
                }
                answer => answer,
            };
            match answer {
                Answer::Reply(reply) => return Ok(Some(reply)),
                Answer::NotServed(NotServed::Impossible) | Answer::Waits(_) => return Ok(None),
                Answer::NotServed(reason) => {
                    let patience = remote.patience(reason);
                    self.process.open_in_turn(reason, patience).await?;
                }
            }
            if !self.is_light() {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Makes a call about these items in parts, since each has a time limit of its own.
    async fn in_pages<'a, T, U, F>(
        &self,
        operation: &'static str,
        items: &'a [T],
        call: impl Fn(&'a [T]) -> F + Send,
    ) -> Result<Vec<U>>
    where
        T: Sync,
        U: Send,
        F: Future<Output = Result<Vec<U>>> + Send,
    {
        self.ensure_open(operation)?;
        let mut results = Vec::with_capacity(items.len());
        for page in items.chunks(PAGE_ITEMS) {
            let called = call(page).await;
            results.extend(part(!results.is_empty(), called)?);
        }
        Ok(results)
    }
}

/// The error of a reply to another request.
fn mismatch(operation: &'static str) -> Error {
    Error::new(ErrorKind::Internal, "a request was answered with the reply to another one")
        .remedy("please report this with the message")
        .operation(operation)
}

fn convert<T, U: From<T>>(items: Vec<T>) -> Vec<U> {
    items.into_iter().map(U::from).collect()
}

#[async_trait]
impl Backend for RabbitBackend {
    fn name(&self) -> &'static str {
        "rabbitmq"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        // Of jobs that are due at the same time, prefetched ones are claimed first.
        capabilities.fifo = false;
        capabilities
    }

    async fn now(&self) -> Result<Timestamp> {
        self.ensure_open("now")?;
        Ok(self.process.context.environment.clock.now())
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.ensure_open("schedule")?;
        if !self.is_light() {
            return self.engine("schedule").await?.schedule(jobs).await;
        }
        let mut scheduled = Vec::with_capacity(jobs.len());
        // One after the other, since jobs with the same key may be in several pages.
        for page in pages(jobs) {
            let size = page.len();
            let call = self.call(
                "schedule",
                || Request::schedule(&page),
                |reply| match reply {
                    Reply::Scheduled(results) if results.len() == size => Some(convert(results)),
                    _ => None,
                },
                |engine| engine.schedule(page.clone()),
            );
            scheduled.extend(part(!scheduled.is_empty(), call.await)?);
        }
        Ok(scheduled)
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.in_pages("cancel", jobs, |jobs| {
            self.call(
                "cancel",
                || Ok(Request::Cancel(jobs.iter().map(Into::into).collect())),
                |reply| match reply {
                    Reply::Cancelled(results) if results.len() == jobs.len() => {
                        Some(convert(results))
                    }
                    _ => None,
                },
                |engine| engine.cancel(jobs),
            )
        })
        .await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.in_pages("reschedule", moves, |moves| {
            self.call(
                "reschedule",
                || Ok(Request::Reschedule(moves.iter().map(Into::into).collect())),
                |reply| match reply {
                    Reply::Rescheduled(results) if results.len() == moves.len() => {
                        Some(convert(results))
                    }
                    _ => None,
                },
                |engine| engine.reschedule(moves),
            )
        })
        .await
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        let member = self.member("listen").await?;
        for queue in queues {
            member.engine.read_ahead.serve(queue);
            member.consumer.consume(queue);
        }
        Ok(self.process.context.listeners.listen(queues))
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let member = self.member("claim").await?;
        if params.limit == 0 || params.wants.iter().all(|want| want.max == 0) {
            return Ok(member.engine.empty_claim(&params));
        }
        for want in params.wants {
            member.engine.read_ahead.serve(&want.queue);
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
        self.engine("settle").await?.settle(settlements).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.engine("renew").await?.renew(renewals).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.call(
            "stats",
            || Ok(Request::Stats(queues.to_vec())),
            |reply| match reply {
                Reply::Stats(stats) => Some(convert(stats)),
                _ => None,
            },
            |engine| engine.stats(queues),
        )
        .await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.engine("browse").await?.browse(&params).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.call(
            "get",
            || Ok(Request::Get(job.into())),
            |reply| match reply {
                Reply::Job(view) => Some(view.map(|view| (*view).into())),
                _ => None,
            },
            |engine| engine.get(job),
        )
        .await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let queue = operation.queue();
        self.call(
            "operate",
            || Ok(Request::Operate(queue.clone(), OwnedOperation::from(operation).into())),
            |reply| match reply {
                Reply::Operated(affected, more) => {
                    let mut report = OperateReport::new(affected);
                    report.more = more;
                    Some(report)
                }
                _ => None,
            },
            |engine| engine.operate(operation),
        )
        .await
    }

    async fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Result<Vec<u64>> {
        self.call(
            "forecast",
            || Ok(Request::Forecast(queue.clone(), edges.to_vec())),
            |reply| match reply {
                Reply::Forecast(counts) => Some(counts),
                _ => None,
            },
            |engine| engine.forecast(queue, edges),
        )
        .await
    }

    async fn announce(&self, announcement: Announcement) -> Result<()> {
        self.engine("announce").await?.announce(announcement).await
    }

    async fn runners(&self) -> Result<Vec<Announced>> {
        self.call(
            "runners",
            || Ok(Request::Runners),
            |reply| match reply {
                Reply::Runners(runners) => Some(convert(runners)),
                _ => None,
            },
            |engine| engine.runners(),
        )
        .await
    }

    async fn check(&self) -> Vec<Finding> {
        if let Err(error) = self.ensure_open("check") {
            return vec![check_failed(&error)];
        }
        let context = &self.process.context;
        // A light process opens the log: most of what is checked is in it.
        let (member, failure) = match self.member("check").await {
            Ok(member) => (Some(member), None),
            Err(error) => (None, Some(check_failed(&error))),
        };
        let log = member.map(|member| &member.engine.log);
        let stats = match member {
            Some(member) => member.engine.stats(&[]).await.ok(),
            None => None,
        };
        let check = BrokerCheck {
            connection: &context.publish,
            topology: &context.topology,
            queues: context.config.queues,
            ladder: context.config.ladder,
            mode: context.config.topology,
            management: context.management.as_ref(),
            clock: &*context.environment.clock,
            entropy: &context.environment.entropy,
            claim_counts: member.map_or((0, 0), |member| member.engine.claim_counts()),
            stats,
            lost_messages: member.map_or(0, |member| member.engine.publisher.lost()),
            log_usage: log.map(Log::usage).unwrap_or_default(),
            level: log.map_or(0, Log::level),
            skipped: log.map(Log::skipped).unwrap_or_default(),
            lost_payloads: log.map(Log::lost_payloads).unwrap_or_default(),
            skew: log.and_then(Log::clock_skew),
            change_failure: log.and_then(Log::change_failure),
            processes: log.map(Log::processes),
        };
        let mut findings = check.findings().await;
        findings.extend(member.and_then(|member| member.server.finding()));
        if let Some(failure) = failure
            && findings.iter().all(|finding| finding.code != failure.code)
        {
            findings.push(failure);
        }
        findings
    }

    async fn close(&self) -> Result<()> {
        self.process.is_closed.store(true, Ordering::Release);
        self.process.remote.close().await;
        self.process.stop.cancel();
        // Waits until the log is open or was not opened.
        let closing = async || Err(closed("close"));
        let closed = match self.process.member.get_or_try_init(closing).await {
            Ok(member) => member.close().await,
            Err(_) => Ok(()),
        };
        self.process.context.publish.close().await;
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
    schemes: ["amqp", "amqps", "rabbitmq", "rabbitmqs"],
    from_url: |url| Ok(Box::new(RabbitConfig::from_url(url)?)),
}
