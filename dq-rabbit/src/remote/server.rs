//! The side of a process with a replica: executes requests of light processes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::machine::OwnedOperation;
use dq_core::sync::lock;
use dq_core::{Error, ErrorKind, Finding, Operation, QueueName, Result, Severity};
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::types::FieldTable;
use lapin::{BasicProperties, Consumer};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::stall::{Moment, StallWatch};
use super::wire::{self, DecodeFailure, Outcome, Reply, Request};
use crate::connect::{AmqpChannel, AmqpConnection};
use crate::engine::Engine;
use crate::error::{LostReply, closed, from_lapin, may_pass, outcome_unknown};
use crate::topology::Topology;

/// How many requests a process executes at a time.
const PREFETCH: u16 = 64;

/// Pause between two attempts to serve.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Executes requests until it is closed.
#[derive(Debug)]
pub(crate) struct RequestServer {
    stop: CancellationToken,
    failure: Arc<Mutex<Option<Error>>>,
    started: CancellationToken,
    task: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    engine: Arc<Engine>,
    connection: Arc<AmqpConnection>,
    topology: Arc<Topology>,
    /// Why this process does not serve at the moment.
    failure: Arc<Mutex<Option<Error>>>,
    /// Cancelled when it serves for the first time, or has failed to.
    started: CancellationToken,
    stop: CancellationToken,
}

/// How replies reach their callers.
#[derive(Clone)]
struct Replies {
    channel: AmqpChannel,
    /// The connection of the channel.
    generation: u64,
    /// Cancelled when the channel is lost.
    lost: CancellationToken,
}

/// Why serving has ended.
enum End {
    /// The channel was lost, or what was received on it may be out of date.
    Channel,
    /// This process cannot execute requests any more, or was closed.
    Final,
}

impl RequestServer {
    /// Starts to serve in the background. If that is not possible, because a permission is missing
    /// or the node of the queue is down, light processes open the log themselves.
    pub(crate) fn start(
        engine: Arc<Engine>,
        connection: Arc<AmqpConnection>,
        topology: Arc<Topology>,
    ) -> Self {
        let stop = CancellationToken::new();
        let started = CancellationToken::new();
        let failure = Arc::default();
        let shared = Shared {
            engine,
            connection,
            topology,
            failure: Arc::clone(&failure),
            started: started.clone(),
            stop: stop.clone(),
        };
        let task = tokio::spawn(Arc::new(shared).run());
        Self { stop, failure, started, task: tokio::sync::Mutex::new(Some(task)) }
    }

    /// Waits until this process serves, or its first attempt has failed.
    pub(crate) async fn started(&self) {
        self.started.cancelled().await;
    }

    /// Reports why this process does not serve at the moment.
    pub(crate) fn finding(&self) -> Option<Finding> {
        let error = lock(&self.failure).clone()?;
        Some(Finding {
            severity: Severity::Info,
            code: "rabbitmq.not-serving",
            cause: format!(
                "this process does not serve light processes, which open the log themselves: {}",
                error.message()
            ),
            remedy: error.remedy_text().unwrap_or("check that the broker runs").to_owned(),
        })
    }

    /// Takes no more requests, and completes those that were taken.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        if let Some(task) = self.task.lock().await.take() {
            task.await.ok();
        }
    }
}

impl Drop for RequestServer {
    fn drop(&mut self) {
        // The task completes what it has taken.
        self.stop.cancel();
    }
}

impl Shared {
    async fn run(self: Arc<Self>) {
        // However this ends.
        let _started = self.started.clone().drop_guard();
        loop {
            match self.serve().await {
                Ok(End::Final) => return,
                Ok(End::Channel) => {}
                Err(error) => {
                    tracing::debug!(%error, "cannot serve other processes now");
                    *lock(&self.failure) = Some(error);
                }
            }
            let pause = self.engine.log.clock().sleep(RETRY_PAUSE);
            if self.stop.run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

    /// Serves on one channel.
    async fn serve(self: &Arc<Self>) -> Result<End> {
        let Some(opened) = self.stop.run_until_cancelled(self.open()).await else {
            return Ok(End::Final);
        };
        self.started.cancel();
        let (channel, generation, consumer, watch) = opened?;
        lock(&self.failure).take();
        tracing::debug!("this process executes requests of others");
        let calls = TaskTracker::new();
        let incapable = CancellationToken::new();
        let replies =
            Replies { channel: channel.clone(), generation, lost: CancellationToken::new() };
        // Also when this future is dropped.
        let lost = replies.lost.clone().drop_guard();
        let end = self.receive(&replies, consumer, watch, &calls, &incapable).await;
        match end {
            End::Channel => drop(lost),
            End::Final => {
                calls.close();
                // Each call has a time limit of its own.
                calls.wait().await;
            }
        }
        channel.close().await;
        Ok(end)
    }

    /// Declares the queue of requests, unless it is declared elsewhere, and consumes.
    async fn open(&self) -> Result<(AmqpChannel, u64, Consumer, StallWatch)> {
        self.topology.declare_requests().await?;
        let (channel, generation) = self.connection.open("serve").await?;
        let consume = async {
            channel.qos(PREFETCH).await?;
            // From before the first request arrives.
            let watch = StallWatch::new(
                self.connection.response_timeout(),
                Moment::of(self.engine.log.clock()),
            );
            let consumer =
                channel.consume(self.topology.names().requests(), FieldTable::default()).await?;
            Ok((consumer, watch))
        };
        match consume.await {
            Ok((consumer, watch)) => Ok((channel, generation, consumer, watch)),
            Err(error) => {
                channel.close().await;
                let broker = self.connection.broker_info();
                Err(from_lapin("serve", LostReply::Unavailable, broker, &error))
            }
        }
    }

    /// Executes what arrives, until the channel or this process ends.
    async fn receive(
        self: &Arc<Self>,
        replies: &Replies,
        mut consumer: Consumer,
        mut watch: StallWatch,
        calls: &TaskTracker,
        incapable: &CancellationToken,
    ) -> End {
        let clock = self.engine.log.clock();
        let mut end = End::Channel;
        loop {
            let ends = async {
                tokio::select! {
                    () = self.stop.cancelled() => {}
                    () = incapable.cancelled() => {}
                }
            };
            let delivery = tokio::select! {
                () = ends, if matches!(end, End::Channel) => {
                    if replies.channel.cancel(consumer.tag()).await.is_err() {
                        // The consumer may go on: the broker reads nothing from a connection that
                        // it blocks. Closing the channel gives back what was received.
                        return End::Channel;
                    }
                    // What was received already is still to be executed.
                    end = End::Final;
                    continue;
                }
                () = self.connection.lost(replies.generation) => return End::Channel,
                delivery = consumer.next() => Some(delivery),
                () = clock.sleep(watch.interval()) => None,
            };
            let age = watch.max_age(Moment::of(clock));
            let delivery = match delivery {
                None => continue,
                Some(Some(Ok(delivery))) => delivery,
                Some(Some(Err(_)) | None) => return end,
            };
            let Some(limit) = self.limit(&delivery).checked_sub(age).filter(|left| !left.is_zero())
            else {
                // Its caller may have given it up, and even repeated it. Closing the channel gives it
                // back, with all that were received in the meantime, and the broker drops those that
                // have expired.
                tracing::warn!(
                    "this process was suspended, or the broker is slow: it gives back the requests of others"
                );
                return end;
            };
            let execute =
                Arc::clone(self).execute(replies.clone(), delivery, limit, incapable.clone());
            calls.spawn(execute);
        }
    }

    /// How long after its delivery a request may be executed: for as long again as it could wait in
    /// the queue, since its caller waits for twice that.
    fn limit(&self, delivery: &Delivery) -> Duration {
        let millis = delivery.properties.expiration().as_ref();
        let millis = millis.and_then(|millis| millis.as_str().parse().ok());
        millis.map_or(self.connection.response_timeout() / 2, Duration::from_millis)
    }

    /// Executes a request, replies, and acknowledges the request.
    async fn execute(
        self: Arc<Self>,
        replies: Replies,
        delivery: Delivery,
        limit: Duration,
        incapable: CancellationToken,
    ) {
        let outcome = match wire::decode::<Request>(&delivery.data) {
            // The process that had it before may have executed it. Its caller notices that nobody
            // replies.
            Err(_) if delivery.redelivered => None,
            Err(DecodeFailure::Damaged) => {
                Some(Outcome::Failed((&DecodeFailure::Damaged.into_error()).into()))
            }
            Err(failure) => Some(Outcome::Refused((&failure.into_error()).into())),
            Ok(request) if delivery.redelivered && request.must_run_once() => {
                Some(Outcome::Failed((&outcome_lost()).into()))
            }
            Ok(request) => match self.call_in_time(request, limit, &replies).await {
                Ok(outcome) => outcome,
                // This process is closing, or its channel is lost, and the request may have been
                // executed. Without an acknowledgement, another process gets it, marked as
                // redelivered.
                Err(error) if error.kind() == ErrorKind::Closed => return,
                Err(error) => Some(Outcome::Failed((&error).into())),
            },
        };
        if self.engine.log.failure("serve").is_some() {
            incapable.cancel();
        }
        let properties = delivery.properties;
        if let Some(outcome) = outcome
            && let Some(reply_to) = properties.reply_to().clone()
            && let Some(number) = properties.correlation_id().clone()
        {
            let message = wire::encode(&outcome);
            let properties = BasicProperties::default().with_correlation_id(number);
            let exchange = self.topology.names().requests();
            // The caller may be gone, so nothing is expected back.
            replies.channel.publish(exchange, reply_to, false, &message, properties).await.ok();
        }
        replies.channel.ack(delivery.delivery_tag, false).await.ok();
    }

    /// Executes a request while its caller may still wait for it. Later, the caller may have
    /// repeated it elsewhere, and acted upon the result. So a call that is given up here is
    /// withdrawn from the log, unless it was sent already. It has no outcome: its caller notices that
    /// this process does not reply in time.
    async fn call_in_time(
        &self,
        request: Request,
        limit: Duration,
        replies: &Replies,
    ) -> Result<Option<Outcome>> {
        tokio::select! {
            biased;
            // The broker has given the request to another process.
            () = replies.lost.cancelled() => Err(closed("serve")),
            () = self.connection.lost(replies.generation) => Err(closed("serve")),
            outcome = self.call(request) => outcome.map(Some),
            () = tokio::time::sleep(limit) => Ok(None),
        }
    }

    /// Executes a request, unless this process cannot read the log any further.
    async fn call(&self, request: Request) -> Result<Outcome> {
        if let Some(error) = self.engine.log.failure("serve") {
            return Ok(Outcome::Refused((&error).into()));
        }
        let must_run_once = request.must_run_once();
        match self.apply(request).await {
            Ok(reply) => Ok(Outcome::Executed(reply)),
            Err(error) if self.engine.log.failure("serve").is_none() => Err(may_pass(error)),
            // The log holds what this process does not understand. For others, the request may have
            // taken effect.
            Err(error) if must_run_once => Err(outcome_unknown(&error)),
            Err(error) => Ok(Outcome::Refused((&error).into())),
        }
    }

    async fn apply(&self, request: Request) -> Result<Reply> {
        let engine = &self.engine;
        Ok(match request {
            Request::Schedule(jobs) => {
                let jobs = jobs.into_iter().map(|job| {
                    let payload = job.payload.intact().ok_or_else(damaged)?;
                    let mut new = job.with_payload(payload.clone());
                    new.headers = job.headers;
                    Ok(new)
                });
                let scheduled = engine.schedule(jobs.collect::<Result<_>>()?).await?;
                Reply::Scheduled(try_convert(scheduled)?)
            }
            Request::Cancel(jobs) => {
                let jobs: Vec<_> = jobs.iter().map(Into::into).collect();
                Reply::Cancelled(try_convert(engine.cancel(&jobs).await?)?)
            }
            Request::Reschedule(moves) => {
                let moves: Vec<_> = moves.iter().map(Into::into).collect();
                Reply::Rescheduled(try_convert(engine.reschedule(&moves).await?)?)
            }
            Request::Operate(queue, operation) => self.operate(&queue, operation.into()).await?,
            Request::Stats(queues) => {
                Reply::Stats(engine.stats(&queues).await?.into_iter().map(Into::into).collect())
            }
            Request::Get(job) => {
                Reply::Job(engine.get(&(&job).into()).await?.map(|view| Box::new(view.into())))
            }
            Request::Forecast(queue, edges) => {
                Reply::Forecast(engine.forecast(&queue, &edges).await?)
            }
            Request::SetHistory(limits) => {
                engine.log.sync_history(&limits, "connect").await?;
                Reply::Done
            }
            Request::Runners => {
                Reply::Runners(engine.runners().await?.into_iter().map(Into::into).collect())
            }
        })
    }

    async fn operate(&self, queue: &QueueName, operation: OwnedOperation) -> Result<Reply> {
        let operation = match &operation {
            OwnedOperation::Replay { jobs, due } => Operation::Replay { queue, jobs, due: *due },
            OwnedOperation::Remove { jobs } => Operation::Remove { queue, jobs },
            OwnedOperation::Pause => Operation::Pause { queue },
            OwnedOperation::Resume => Operation::Resume { queue },
            OwnedOperation::Purge => Operation::Purge { queue },
        };
        Ok(self.engine.operate(operation).await?.into())
    }
}

fn try_convert<T, U: TryFrom<T, Error = Error>>(items: Vec<T>) -> Result<Vec<U>> {
    items.into_iter().map(U::try_from).collect()
}

/// The error of a request whose first server has ended without a reply.
fn outcome_lost() -> Error {
    let error = Error::new(
        ErrorKind::Unavailable,
        "the process that executed the call has ended, or lost its connection",
    );
    outcome_unknown(&error)
}

/// The error of a payload that does not have its checksum.
fn damaged() -> Error {
    Error::new(ErrorKind::Unavailable, "the payload of a request was damaged on the way")
        .remedy("repeat the call")
}
