//! Declares all exchanges, queues and bindings:
//!
//! - the exchange and the stream of the log;
//! - the delay ladder: an exchange for each level, and a queue for each digit of each level, which
//!   dead-letters its messages to the exchange of the next lower level; or the plugin's exchange;
//! - the exchange `due`, which routes messages from the ladder by topic to the ready queues, and a
//!   ready queue for each job queue, declared when it is first used;
//! - an exchange and a queue each for dead letters of the ready queues and for unroutable messages.
//!
//! Declaring an object again with the same arguments costs one small reply; with other arguments,
//! the broker refuses and closes the channel. So declarations use a channel of their own, and all
//! requests are sent before the first reply is awaited.

mod declaration;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dq_core::sync::lock;
use dq_core::{QueueName, Result};
use futures_util::future::BoxFuture;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{Channel, ExchangeKind};

use self::declaration::Declaration;
use crate::config::{QueueKind, RabbitConfig, TopologyMode};
use crate::connect::AmqpConnection;
use crate::error::{self, LostReply};
use crate::ladder::{self, Ladder, LadderQueue};
use crate::names::{LEVELS, ObjectNames, Topic};

/// How often the broker may redeliver a message of a ready queue. Attempts are counted in the log
/// and limited far below this; without the argument, a broker from 4.0 on would dead-letter after
/// 20 deliveries.
const DELIVERY_LIMIT: i64 = 1000;

/// The broker truncates the log by whole segments, so there should be many; but each is a file.
const LOG_SEGMENTS: i64 = 16;
const MIN_SEGMENT_BYTES: i64 = 1_000_000;
const MAX_SEGMENT_BYTES: i64 = 64_000_000;

/// Maximum number of missing objects that an error names.
const MAX_NAMED: usize = 8;

/// How many response timeouts to wait for the reply to a declaration, which writes to disk.
const DECLARE_TIMEOUTS: u32 = 6;

/// The exchange type of the plugin.
const DELAYED: &str = "x-delayed-message";

/// Declares exchanges, queues and bindings, or checks that they exist.
pub(crate) struct Topology {
    connection: Arc<AmqpConnection>,
    names: ObjectNames,
    queues: QueueKind,
    mode: TopologyMode,
    log_bytes: i64,
    /// Job queues whose ready queue is declared.
    ready: Mutex<HashSet<QueueName>>,
    /// Held during a redeclaration.
    redeclaring: tokio::sync::Mutex<()>,
    /// Number of completed redeclarations.
    redeclared: AtomicU64,
}

impl Topology {
    /// The topology for these settings; declares nothing yet.
    pub(crate) fn new(connection: Arc<AmqpConnection>, config: &RabbitConfig) -> Self {
        Self {
            connection,
            names: ObjectNames::new(&config.prefix),
            queues: config.queues,
            mode: config.topology,
            log_bytes: config.log_bytes(),
            ready: Mutex::default(),
            redeclaring: tokio::sync::Mutex::default(),
            redeclared: AtomicU64::new(0),
        }
    }

    pub(crate) fn names(&self) -> &ObjectNames {
        &self.names
    }

    /// Routes through this topology.
    pub(crate) fn ladder(&self) -> Ladder {
        match self.mode {
            TopologyMode::Plugin => Ladder::with_plugin(&self.names),
            TopologyMode::Declare | TopologyMode::Passive => Ladder::new(&self.names),
        }
    }

    /// Declares everything but the ready queues; with [`TopologyMode::Passive`], checks that it
    /// exists.
    pub(crate) async fn declare_all(&self) -> Result<()> {
        self.ensure(self.everything()).await
    }

    /// Declares the ready queue of a job queue, unless this was done since the last
    /// [`redeclare`](Self::redeclare).
    pub(crate) async fn declare_ready(&self, queue: &QueueName) -> Result<()> {
        if lock(&self.ready).contains(queue) {
            return Ok(());
        }
        self.ensure(self.ready_queue(&Topic::of(queue))).await?;
        lock(&self.ready).insert(queue.clone());
        Ok(())
    }

    /// Declares everything again, and forgets which ready queues are declared: objects may have
    /// been deleted, or the broker replaced. Concurrent calls share one redeclaration.
    pub(crate) async fn redeclare(&self) -> Result<()> {
        let before = self.redeclared.load(Ordering::Acquire);
        let _guard = self.redeclaring.lock().await;
        if self.redeclared.load(Ordering::Acquire) != before {
            return Ok(());
        }
        lock(&self.ready).clear();
        self.declare_all().await?;
        self.redeclared.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    async fn ensure(&self, declarations: Vec<Declaration>) -> Result<()> {
        match self.mode {
            TopologyMode::Passive => self.check_existence(declarations).await,
            TopologyMode::Declare | TopologyMode::Plugin => self.declare(&declarations).await,
        }
    }

    async fn declare(&self, declarations: &[Declaration]) -> Result<()> {
        let channel = self.connection.channel("declare").await?;
        let declared = self.send(&channel, declarations, false).await;
        close(channel).await;
        declared.map_err(|rejection| rejection.error)
    }

    /// Checks that exchanges and queues exist; AMQP has no such check for bindings.
    async fn check_existence(&self, mut declarations: Vec<Declaration>) -> Result<()> {
        declarations.retain(|declaration| {
            matches!(declaration, Declaration::Exchange(..) | Declaration::Queue(..))
        });
        let mut missing = Vec::new();
        let mut from = 0;
        while from < declarations.len() && missing.len() <= MAX_NAMED {
            // A missing object closes the channel, so the requests after it need another one.
            let channel = self.connection.channel("declare").await?;
            let checked = self.send(&channel, &declarations[from..], true).await;
            close(channel).await;
            match checked {
                Ok(()) => break,
                Err(rejection) if rejection.code == Some(404) => {
                    missing.push(declarations[from + rejection.index].to_string());
                    from += rejection.index + 1;
                }
                Err(rejection) => return Err(rejection.error),
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let more = missing.len() > MAX_NAMED;
        missing.truncate(MAX_NAMED);
        let mut names = missing.join(", ");
        if more {
            names.push_str(" and more");
        }
        Err(error::missing_objects("declare", self.connection.broker_info(), &names))
    }

    /// Sends all requests, then awaits the replies, which come in the same order.
    async fn send(
        &self,
        channel: &Channel,
        declarations: &[Declaration],
        passive: bool,
    ) -> Result<(), Rejection> {
        let broker = self.connection.broker_info();
        let replies: Vec<_> =
            declarations.iter().map(|declaration| declaration.send(channel, passive)).collect();
        for (index, reply) in replies.into_iter().enumerate() {
            let Some(reply) = self.reply_in_time(reply).await else {
                let error = match self.connection.blocked() {
                    Some(reason) => error::blocked("declare", broker, &reason),
                    None => error::timed_out("declare", LostReply::Unavailable, broker),
                };
                return Err(Rejection { index, code: None, error });
            };
            if let Err(error) = reply {
                let code = match error.kind() {
                    lapin::ErrorKind::ProtocolError(error) => Some(error.get_id()),
                    _ => None,
                };
                let required = |object: &str| declarations[index].required_permission(object);
                let error = error::from_declaration(broker, &required, &error);
                return Err(Rejection { index, code, error });
            }
        }
        Ok(())
    }

    /// Waits for a reply. `None` if it takes too long, or after one timeout if the connection is
    /// blocked.
    async fn reply_in_time<T>(&self, mut reply: BoxFuture<'_, T>) -> Option<T> {
        for _ in 0..DECLARE_TIMEOUTS {
            let timeout = self.connection.response_timeout();
            if let Ok(reply) = tokio::time::timeout(timeout, &mut reply).await {
                return Some(reply);
            }
            if self.connection.blocked().is_some() {
                break;
            }
        }
        None
    }

    fn everything(&self) -> Vec<Declaration> {
        let names = &self.names;
        let mut declarations = vec![
            Declaration::Exchange(names.orphan(), ExchangeKind::Fanout, FieldTable::default()),
            Declaration::Queue(names.orphan(), self.queue_type()),
            Declaration::QueueBinding(names.orphan(), names.orphan(), ShortString::default()),
            Declaration::Exchange(names.dead(), ExchangeKind::Fanout, FieldTable::default()),
            Declaration::Queue(names.dead(), self.queue_type()),
            Declaration::QueueBinding(names.dead(), names.dead(), ShortString::default()),
            self.topic_exchange(names.due()),
            Declaration::Queue(names.log(), self.log_arguments()),
            Declaration::Exchange(names.log(), ExchangeKind::Fanout, FieldTable::default()),
            Declaration::QueueBinding(names.log(), names.log(), ShortString::default()),
        ];
        if self.mode == TopologyMode::Plugin {
            let mut arguments = FieldTable::default();
            arguments.insert("x-delayed-type".into(), text("fanout"));
            let kind = ExchangeKind::Custom(DELAYED.to_owned());
            declarations.push(Declaration::Exchange(names.delayed(), kind, arguments));
            declarations.push(Declaration::ExchangeBinding(
                names.delayed(),
                names.due(),
                ShortString::default(),
            ));
            return declarations;
        }
        // Lowest level first, so that the dead-letter exchange of each queue exists before the
        // queue.
        for level in 0..LEVELS {
            declarations.push(self.topic_exchange(names.level(level)));
            declarations.push(Declaration::ExchangeBinding(
                names.level(level),
                self.next_exchange(level),
                ladder::binding_key(level, 0),
            ));
        }
        for queue in ladder::queues(self.queues) {
            let name = names.ladder_queue(queue.level, queue.digit);
            declarations.push(Declaration::Queue(name.clone(), self.ladder_arguments(queue)));
            let key = ladder::binding_key(queue.level, queue.digit);
            declarations.push(Declaration::QueueBinding(names.level(queue.level), name, key));
        }
        declarations
    }

    fn ready_queue(&self, topic: &Topic) -> Vec<Declaration> {
        let mut arguments = self.queue_type();
        arguments.insert("x-dead-letter-exchange".into(), name_value(&self.names.dead()));
        if self.queues == QueueKind::Quorum {
            arguments.insert("x-delivery-limit".into(), DELIVERY_LIMIT.into());
        }
        let queue = self.names.ready(topic);
        vec![
            Declaration::Queue(queue.clone(), arguments),
            Declaration::QueueBinding(self.names.due(), queue, topic.binding_key()),
        ]
    }

    /// The exchange to which queues of this level dead-letter their messages.
    fn next_exchange(&self, level: usize) -> ShortString {
        match level {
            0 => self.names.due(),
            level => self.names.level(level - 1),
        }
    }

    /// A topic exchange with an alternate exchange for messages that match no binding. Without it,
    /// such messages could not leave their queue and would block all messages behind them.
    fn topic_exchange(&self, name: ShortString) -> Declaration {
        let mut arguments = FieldTable::default();
        arguments.insert("alternate-exchange".into(), name_value(&self.names.orphan()));
        Declaration::Exchange(name, ExchangeKind::Topic, arguments)
    }

    /// Arguments that select the queue type.
    fn queue_type(&self) -> FieldTable {
        let mut arguments = FieldTable::default();
        let kind = match self.queues {
            QueueKind::Quorum => "quorum",
            QueueKind::Classic => "classic",
        };
        arguments.insert("x-queue-type".into(), text(kind));
        arguments
    }

    fn ladder_arguments(&self, queue: LadderQueue) -> FieldTable {
        let mut arguments = self.queue_type();
        arguments.insert("x-message-ttl".into(), queue.ttl_ms.into());
        arguments
            .insert("x-dead-letter-exchange".into(), name_value(&self.next_exchange(queue.level)));
        if self.queues == QueueKind::Quorum {
            // A message leaves its queue only when the next queue has confirmed it. The broker
            // requires the overflow behaviour `reject-publish` for that.
            arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
            arguments.insert("x-overflow".into(), text("reject-publish"));
        }
        arguments
    }

    fn log_arguments(&self) -> FieldTable {
        let segment = (self.log_bytes / LOG_SEGMENTS).clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES);
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), text("stream"));
        arguments.insert("x-max-length-bytes".into(), self.log_bytes.into());
        arguments.insert("x-stream-max-segment-size-bytes".into(), segment.into());
        arguments
    }
}

impl std::fmt::Debug for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Topology")
            .field("names", &self.names)
            .field("queues", &self.queues)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// A declaration that the broker rejected, or did not reply to.
struct Rejection {
    /// Index of the declaration.
    index: usize,
    /// The reply code; `None` if there was no reply.
    code: Option<u16>,
    error: dq_core::Error,
}

/// Closes a channel if it is still open.
async fn close(channel: Channel) {
    if channel.status().connected() {
        let closing = channel.close(200, "done".into());
        tokio::time::timeout(std::time::Duration::from_millis(500), closing).await.ok();
    }
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

fn name_value(name: &ShortString) -> AMQPValue {
    text(name.as_str())
}
