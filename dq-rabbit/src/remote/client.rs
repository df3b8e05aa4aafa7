//! The caller's side: sends requests and waits for their replies.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dq_core::sync::lock;
use dq_core::{Entropy, Error, ErrorKind, Result};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use lapin::types::ShortString;
use lapin::{BasicProperties, Confirmation, Consumer};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::wire::{self, DecodeFailure, Outcome, Reply, Request};
use crate::connect::{AmqpChannel, AmqpConnection};
use crate::error::{self, LostReply, Refusal, closed, from_lapin, outcome_unknown, timed_out};
use crate::names::ObjectNames;

/// How long to wait for a reply before looking whether somebody serves. Random within this range,
/// so that not all light processes look at the same moment.
const MIN_PATIENCE: Duration = Duration::from_millis(250);
const MAX_PATIENCE: Duration = Duration::from_secs(1);

/// After this number of requests in a row without a reply in time, other processes are not asked any
/// more. A single reply may be late because the broker is slow.
const MAX_TIMEOUTS: u32 = 2;

/// Maximum size of all requests without a reply, in bytes. Calls beyond it fail with `Unavailable`.
const MAX_PENDING_BYTES: usize = 64 * 1024 * 1024;

/// Sends requests. Opens its channel and its queue of replies with the first one, and again after
/// they are lost.
pub(crate) struct RemoteClient {
    pub(super) connection: Arc<AmqpConnection>,
    pub(super) names: ObjectNames,
    pub(super) entropy: Arc<Entropy>,
    session: tokio::sync::Mutex<Option<Arc<Session>>>,
    timeouts: Mutex<Timeouts>,
    /// Whether another process has replied, ever.
    was_served: AtomicBool,
    /// Whether this process makes its calls itself.
    is_replaced: AtomicBool,
    is_closed: AtomicBool,
}

/// The result of sending a request.
pub(crate) enum Answer {
    /// It was executed.
    Reply(Reply),
    /// It was not executed.
    NotServed(NotServed),
    /// It waits, but nobody serves. If this process begins to, it executes the request itself.
    Waits(Pending),
}

/// Why a request was not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotServed {
    /// No process serves.
    NobodyServes,
    /// The last requests had no reply in time.
    NobodyReplies,
    /// The processes that serve cannot execute it, or this process cannot send it.
    Impossible,
}

/// Requests since the last reply that had none in time. Calls at the same time count as one.
#[derive(Debug, Default)]
pub(super) struct Timeouts {
    count: u32,
    /// When the last one was counted.
    last: Option<Instant>,
}

impl Timeouts {
    /// Counts a request that was sent at `sent`.
    pub(super) fn add(&mut self, sent: Instant, now: Instant) {
        if self.last.is_none_or(|last| last <= sent) {
            self.count += 1;
            self.last = Some(now);
        }
    }

    /// Whether other processes are not asked any more.
    pub(super) fn is_exceeded(&self) -> bool {
        self.count >= MAX_TIMEOUTS
    }
}

/// A channel with a queue of replies.
struct Session {
    channel: AmqpChannel,
    replies: ShortString,
    waiting: Arc<Waiting>,
    _reader: AbortOnDropHandle<()>,
}

/// Callers that wait for replies.
#[derive(Default)]
struct Waiting(Mutex<WaitingCalls>);

#[derive(Default)]
struct WaitingCalls {
    /// By the number of their request.
    callers: HashMap<u64, oneshot::Sender<Bytes>>,
    last: u64,
    /// Size of their requests.
    bytes: usize,
    /// No more replies will arrive.
    is_closed: bool,
}

/// A request that was sent and has no reply yet.
pub(crate) struct Pending {
    operation: &'static str,
    /// Whether it matters that the request is executed only once.
    must_run_once: bool,
    session: Arc<Session>,
    number: u64,
    size: usize,
    sent: Instant,
    deadline: Instant,
    /// The broker's confirmation that the request is in the queue, until it is there.
    confirm: Option<BoxFuture<'static, lapin::Result<Confirmation>>>,
    reply: oneshot::Receiver<Bytes>,
}

/// What happens next to a request.
enum Event {
    Answered(Answer),
    /// The caller has been waiting for a while.
    Unanswered,
}

impl RemoteClient {
    pub(crate) fn new(
        connection: Arc<AmqpConnection>,
        names: ObjectNames,
        entropy: Arc<Entropy>,
    ) -> Self {
        Self {
            connection,
            names,
            entropy,
            session: tokio::sync::Mutex::default(),
            timeouts: Mutex::default(),
            was_served: AtomicBool::new(false),
            is_replaced: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// Those of the call; `Unavailable` if it has certainly not been executed; `OutcomeUnknown` if
    /// it may have been, and must run once; `Full` if the broker has a resource alarm.
    ///
    /// # Cancellation safety
    /// A request whose call is dropped may still be executed.
    pub(crate) async fn call(&self, operation: &'static str, request: &Request) -> Result<Answer> {
        let mut pending = match self.send(operation, request).await? {
            Ok(pending) => pending,
            Err(reason) => return Ok(Answer::NotServed(reason)),
        };
        let range = MAX_PATIENCE - MIN_PATIENCE;
        let mut patience = MIN_PATIENCE + range.mul_f64(self.entropy.fraction());
        loop {
            match self.next_event(&mut pending, patience).await? {
                Event::Answered(answer) => return Ok(answer),
                Event::Unanswered => {
                    // If the broker does not say, somebody is assumed to serve, and the request waits on.
                    let is_served = timeout_at(pending.deadline, self.is_served(operation)).await;
                    if matches!(is_served, Ok(Ok(false))) {
                        return Ok(Answer::Waits(pending));
                    }
                    // Many callers of a slow broker must not make it slower.
                    patience *= 2;
                }
            }
        }
    }

    /// Waits for the reply to a request that [`call`](Self::call) has sent.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub(crate) async fn finish(&self, mut pending: Pending) -> Result<Answer> {
        loop {
            if let Event::Answered(answer) = self.next_event(&mut pending, MAX_PATIENCE).await? {
                return Ok(answer);
            }
        }
    }

    /// Whether a request since the last reply had none in time.
    pub(crate) fn has_timed_out(&self) -> bool {
        lock(&self.timeouts).count > 0
    }

    /// Asks other processes again, since this one cannot open the log.
    pub(crate) fn ask_again(&self) {
        *lock(&self.timeouts) = Timeouts::default();
    }

    /// Gives up the channel and the queue of replies once all calls in progress have their replies.
    pub(crate) async fn retire(&self) {
        self.session.lock().await.take();
    }

    /// As [`retire`](Self::retire), for good: this process makes its calls itself from now on.
    pub(crate) async fn replace(&self) {
        self.is_replaced.store(true, Ordering::Release);
        self.retire().await;
    }

    /// Whether another process has replied, ever.
    pub(super) fn was_served(&self) -> bool {
        self.was_served.load(Ordering::Acquire)
    }

    /// Fails all calls that wait for a reply with `Closed`, and closes the channel, which deletes
    /// the queue of replies.
    pub(crate) async fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        if let Some(session) = self.session.lock().await.take() {
            session.waiting.close();
            session.channel.clone().close().await;
        }
    }

    /// Sends a request, unless nobody would execute it.
    async fn send(
        &self,
        operation: &'static str,
        request: &Request,
    ) -> Result<Result<Pending, NotServed>> {
        let broker = self.connection.broker_info();
        // The client library would only buffer what is published on a blocked connection.
        if let Some(reason) = self.connection.blocked() {
            return Err(error::blocked(operation, broker, &reason));
        }
        let session = match self.session(operation).await? {
            Ok(session) => session,
            Err(reason) => return Ok(Err(reason)),
        };
        let timeout = self.connection.response_timeout();
        let sent = Instant::now();
        let message = wire::encode(request);
        let (number, reply) = session.waiting.add(message.len()).ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "too many calls wait for their replies")
                .remedy("start more runners, or make fewer calls at a time")
                .operation(operation)
        })?;
        let mut pending = Pending {
            operation,
            must_run_once: request.must_run_once(),
            size: message.len(),
            number,
            sent,
            deadline: sent + timeout,
            confirm: None,
            reply,
            session: Arc::clone(&session),
        };
        let properties = BasicProperties::default()
            .with_reply_to(session.replies.clone())
            .with_correlation_id(number.to_string().into())
            .with_expiration((timeout / 2).as_millis().max(1).to_string().into());
        let exchange = self.names.requests();
        let key = self.names.requests();
        match session.channel.publish(exchange, key, true, &message, properties).await {
            Ok(confirm) => pending.confirm = Some(confirm.received_at_last().boxed()),
            Err(error) => return Err(from_lapin(operation, pending.lost_reply(), broker, &error)),
        }
        Ok(Ok(pending))
    }

    /// Waits until something happens to a request, at most for `patience`.
    async fn next_event(&self, pending: &mut Pending, patience: Duration) -> Result<Event> {
        let operation = pending.operation;
        let until = pending.deadline.min(Instant::now() + patience);
        let reply = loop {
            let confirmed = async {
                match &mut pending.confirm {
                    Some(confirm) => confirm.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                reply = &mut pending.reply => break reply.ok(),
                confirmed = confirmed => {
                    pending.confirm = None;
                    match confirmed {
                        Ok(Confirmation::Ack(None) | Confirmation::NotRequested) => {}
                        // The message of another request; see `error::returned`. This one waits on.
                        Ok(Confirmation::Ack(Some(message)))
                            if number_of(&message.delivery.properties) != Some(pending.number) => {}
                        // The queue was deleted.
                        Ok(Confirmation::Ack(Some(_))) => {
                            let answer = Answer::NotServed(NotServed::NobodyServes);
                            return Ok(Event::Answered(answer));
                        }
                        Ok(Confirmation::Nack(_)) => {
                            return Err(refused(operation, pending.must_run_once));
                        }
                        Err(_) => break None,
                    }
                }
                () = sleep_until(until) => {
                    if until == pending.deadline {
                        return Err(self.timeout_error(pending));
                    }
                    return Ok(Event::Unanswered);
                }
            }
        };
        match reply {
            Some(reply) => {
                self.was_served.store(true, Ordering::Release);
                *lock(&self.timeouts) = Timeouts::default();
                outcome(operation, pending.must_run_once, &reply).map(Event::Answered)
            }
            None => Err(self.lost_error(pending)),
        }
    }

    /// The error of a request without a reply in time.
    fn timeout_error(&self, pending: &Pending) -> Error {
        let (operation, broker) = (pending.operation, self.connection.broker_info());
        if let Some(reason) = self.connection.blocked() {
            let error = error::blocked(operation, broker, &reason);
            return if pending.must_run_once { outcome_unknown(&error) } else { error };
        }
        if let Some(error) = self.connection.failure() {
            return from_lapin(operation, pending.lost_reply(), broker, &error);
        }
        lock(&self.timeouts).add(pending.sent, Instant::now());
        timed_out(operation, pending.lost_reply(), broker)
    }

    /// The error of a request whose reply cannot arrive any more.
    fn lost_error(&self, pending: &Pending) -> Error {
        let operation = pending.operation;
        if self.is_closed.load(Ordering::Acquire) {
            return closed(operation);
        }
        let broker = self.connection.broker_info();
        if let Some(error) = self.connection.failure() {
            return from_lapin(operation, pending.lost_reply(), broker, &error);
        }
        let what = format!("RabbitMQ at {}: the channel of a request was closed", broker.hosts);
        let error =
            Error::new(ErrorKind::Unavailable, what).remedy("repeat the call").operation(operation);
        if pending.must_run_once { outcome_unknown(&error) } else { error }
    }

    /// Whether a process serves.
    ///
    /// # Errors
    /// If there is no connection.
    pub(super) async fn is_served(&self, operation: &'static str) -> Result<bool> {
        let channel = self.connection.channel(operation).await?;
        let count = channel.count_consumers(self.names.requests()).await;
        channel.close().await;
        match count {
            Ok(count) => Ok(count > 0),
            Err(error) if error::breaks_connection(&error) => {
                let broker = self.connection.broker_info();
                Err(from_lapin(operation, LostReply::Unavailable, broker, &error))
            }
            // Nobody can serve without the queue.
            Err(_) => Ok(false),
        }
    }

    /// The current session; another one if it was lost.
    async fn session(&self, operation: &'static str) -> Result<Result<Arc<Session>, NotServed>> {
        if lock(&self.timeouts).is_exceeded() {
            return Ok(Err(NotServed::NobodyReplies));
        }
        let broker = self.connection.broker_info();
        let limit = self.connection.response_timeout();
        let Ok(mut current) = tokio::time::timeout(limit, self.session.lock()).await else {
            // Another call opens it, and gets no reply.
            let error = self.connection.failure();
            return Err(match error {
                Some(error) => from_lapin(operation, LostReply::Unavailable, broker, &error),
                None => timed_out(operation, LostReply::Unavailable, broker),
            });
        };
        // It may have changed while this call waited for the lock. A session that opens now would
        // stay.
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed(operation));
        }
        if self.is_replaced.load(Ordering::Acquire) {
            return Ok(Err(NotServed::Impossible));
        }
        if let Some(session) = &*current
            && session.channel.is_open()
            && !session.waiting.is_closed()
        {
            return Ok(Ok(Arc::clone(session)));
        }
        let channel = self.connection.channel(operation).await?;
        let opening = Session::open(&channel, &self.names, self.entropy.bits() as u64, limit);
        let opened = tokio::time::timeout(limit, opening).await;
        if let Ok(Ok(Some(session))) = opened {
            let session = Arc::new(session);
            *current = Some(Arc::clone(&session));
            return Ok(Ok(session));
        }
        channel.close().await;
        match opened {
            Ok(Ok(_)) => Ok(Err(NotServed::NobodyServes)),
            // The queue of requests does not exist, or its node is down, or a permission is missing.
            Ok(Err(error)) if !error::breaks_connection(&error) => {
                tracing::debug!(%error, "this process cannot send requests, and opens the log");
                let is_missing = error::refusal(&error) == Refusal::NotFound;
                Ok(Err(if is_missing { NotServed::NobodyServes } else { NotServed::Impossible }))
            }
            Ok(Err(error)) => Err(from_lapin(operation, LostReply::Unavailable, broker, &error)),
            Err(_) => Err(timed_out(operation, LostReply::Unavailable, broker)),
        }
    }
}

impl std::fmt::Debug for RemoteClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteClient").finish_non_exhaustive()
    }
}

impl Session {
    /// Declares the queue of replies and reads it. `None` if nobody serves.
    async fn open(
        channel: &AmqpChannel,
        names: &ObjectNames,
        number: u64,
        limit: Duration,
    ) -> lapin::Result<Option<Self>> {
        if channel.count_consumers(names.requests()).await? == 0 {
            return Ok(None);
        }
        let replies = names.replies(number);
        // If the session does not open completely, the queue has no consumer, and expires.
        channel.declare_exclusive_queue(replies.clone(), limit * 2).await?;
        let bound = channel.bind_queue(names.requests(), replies.clone(), replies.clone());
        bound.received().await?;
        let consumer = channel.consume_exclusively(replies.clone()).await?;
        channel.confirm_select().await?;
        let waiting = Arc::new(Waiting::default());
        let reader = tokio::spawn(read(consumer, Arc::clone(&waiting)));
        Ok(Some(Self {
            channel: channel.clone(),
            replies,
            waiting,
            _reader: AbortOnDropHandle::new(reader),
        }))
    }
}

/// The number of the request that a message is, or replies to.
fn number_of(properties: &BasicProperties) -> Option<u64> {
    properties.correlation_id().as_ref()?.as_str().parse().ok()
}

/// Gives replies to their callers until the channel closes.
async fn read(mut consumer: Consumer, waiting: Arc<Waiting>) {
    while let Some(Ok(delivery)) = consumer.next().await {
        if let Some(number) = number_of(&delivery.properties) {
            waiting.reply(number, delivery.data.into());
        }
    }
    waiting.close();
}

impl Waiting {
    /// Adds a caller whose request has this size. Returns the number of the request and the
    /// receiver of its reply; `None` if there are too many.
    fn add(&self, size: usize) -> Option<(u64, oneshot::Receiver<Bytes>)> {
        let (caller, reply) = oneshot::channel();
        let mut calls = lock(&self.0);
        if calls.bytes > 0 && calls.bytes + size > MAX_PENDING_BYTES {
            return None;
        }
        calls.last += 1;
        calls.bytes += size;
        let number = calls.last;
        if !calls.is_closed {
            calls.callers.insert(number, caller);
        }
        Some((number, reply))
    }

    /// Gives a reply to its caller, if it is still there.
    fn reply(&self, number: u64, reply: Bytes) {
        if let Some(caller) = lock(&self.0).callers.remove(&number) {
            caller.send(reply).ok();
        }
    }

    fn remove(&self, number: u64, size: usize) {
        let mut calls = lock(&self.0);
        calls.callers.remove(&number);
        calls.bytes -= size;
    }

    fn is_closed(&self) -> bool {
        lock(&self.0).is_closed
    }

    /// No more replies will arrive.
    fn close(&self) {
        let mut calls = lock(&self.0);
        calls.is_closed = true;
        calls.callers.clear();
    }
}

impl Pending {
    fn lost_reply(&self) -> LostReply {
        if self.must_run_once { LostReply::OutcomeUnknown } else { LostReply::Unavailable }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.session.waiting.remove(self.number, self.size);
        // The client library would keep a confirmation that is dropped before it arrives.
        if let (Some(confirm), Ok(runtime)) = (self.confirm.take(), Handle::try_current()) {
            runtime.spawn(async move { confirm.await.map(drop) });
        }
    }
}

/// What a reply says. A refusal, and another version, mean that the process that sent it could not
/// execute the request. Any other reply that cannot be decoded may be the result of a request that
/// was executed.
pub(super) fn outcome(
    operation: &'static str,
    must_run_once: bool,
    reply: &[u8],
) -> Result<Answer> {
    match wire::decode(reply) {
        Ok(Outcome::Executed(reply)) => Ok(Answer::Reply(reply)),
        Ok(Outcome::Failed(failure)) => Err(failure.into_error(operation)),
        Ok(Outcome::Refused(failure)) => {
            let error = failure.into_error(operation);
            tracing::debug!(%error, "another process refused a request; this one opens the log");
            Ok(Answer::NotServed(NotServed::Impossible))
        }
        Err(failure) if must_run_once && failure != DecodeFailure::OtherVersion => {
            Err(outcome_unknown(&failure.into_error().operation(operation)))
        }
        Err(DecodeFailure::Damaged) => {
            Err(DecodeFailure::Damaged.into_error().operation(operation))
        }
        Err(failure) => {
            tracing::debug!(?failure, "a reply cannot be read; this process opens the log");
            Ok(Answer::NotServed(NotServed::Impossible))
        }
    }
}

/// The error of a request that the broker did not take into the queue: because the queue is full, or
/// because its node or its process ended, perhaps after the request was delivered.
fn refused(operation: &'static str, must_run_once: bool) -> Error {
    let what = "too many requests wait for processes with a replica";
    let error = Error::new(ErrorKind::Unavailable, what)
        .remedy("start more runners, or repeat the call later")
        .operation(operation);
    if must_run_once { outcome_unknown(&error) } else { error }
}
