//! All exchanges and queues, and how they are declared.
//!
//! What is declared again as it is costs one small answer; what is declared otherwise is refused by the
//! broker, and ends the channel. So declaring has a channel of its own, on which everything is sent
//! before the first answer is read.

mod item;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dq_core::{QueueName, Result};
use futures_util::future::BoxFuture;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{Channel, ExchangeKind};

use self::item::Item;
use crate::config::{QueueKind, RabbitConfig, TopologyMode};
use crate::connect::Link;
use crate::error::{self, Effect};
use crate::ladder::{self, LEVELS, Ladder, Step};
use crate::names::{Names, Topic};

/// How often the broker may hand a job out before it gives up on it. We count attempts ourselves and
/// give up much earlier; a broker from 4.0 on would otherwise do so after 20.
const DELIVERY_LIMIT: i64 = 1000;

/// The log is cut by whole segments, so there should be many; but each is a file.
const SEGMENTS: i64 = 16;
const SMALLEST_SEGMENT: i64 = 1_000_000;
const LARGEST_SEGMENT: i64 = 64_000_000;

/// How many missing objects are named.
const NAMED: usize = 8;

/// How many times as long as other answers one to a declaration may take: it waits for disks.
const PATIENCE: u32 = 6;

/// The exchange type of the plugin.
const DELAYED: &str = "x-delayed-message";

/// Declares what is needed, once.
pub(crate) struct Topology {
    link: Arc<Link>,
    names: Names,
    queues: QueueKind,
    mode: TopologyMode,
    log_bytes: i64,
    /// The queues that have their ready queue.
    ready: Mutex<HashSet<QueueName>>,
    restoring: tokio::sync::Mutex<()>,
    restored: AtomicU64,
}

impl Topology {
    /// What these settings ask for; declares nothing yet.
    pub(crate) fn new(link: Arc<Link>, config: &RabbitConfig) -> Self {
        Self {
            link,
            names: Names::new(&config.prefix),
            queues: config.queues,
            mode: config.topology,
            log_bytes: config.log_bytes(),
            ready: Mutex::default(),
            restoring: tokio::sync::Mutex::default(),
            restored: AtomicU64::new(0),
        }
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// The routes that this topology has.
    pub(crate) fn ladder(&self) -> Ladder {
        match self.mode {
            TopologyMode::Plugin => Ladder::of_plugin(&self.names),
            TopologyMode::Declare | TopologyMode::Passive => Ladder::new(&self.names),
        }
    }

    /// Declares everything but the ready queues; with [`TopologyMode::Passive`] looks whether it is
    /// there.
    pub(crate) async fn prepare(&self) -> Result<()> {
        self.see_to(self.everything()).await
    }

    /// Declares the ready queue of this queue, unless that was done since the last
    /// [`restore`](Self::restore).
    pub(crate) async fn ready(&self, queue: &QueueName) -> Result<()> {
        if self.known().contains(queue) {
            return Ok(());
        }
        self.see_to(self.ready_queue(&Topic::of(queue))).await?;
        self.known().insert(queue.clone());
        Ok(())
    }

    /// Declares everything again, and the ready queues when they are next asked for: the broker may be
    /// another by now, or somebody has deleted something. Several who ask at a time are answered at once.
    pub(crate) async fn restore(&self) -> Result<()> {
        let before = self.restored.load(Ordering::Acquire);
        let _one = self.restoring.lock().await;
        if self.restored.load(Ordering::Acquire) != before {
            return Ok(());
        }
        self.known().clear();
        self.prepare().await?;
        self.restored.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, HashSet<QueueName>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn see_to(&self, items: Vec<Item>) -> Result<()> {
        match self.mode {
            TopologyMode::Passive => self.look_for(items).await,
            TopologyMode::Declare | TopologyMode::Plugin => self.declare(&items).await,
        }
    }

    async fn declare(&self, items: &[Item]) -> Result<()> {
        let channel = self.link.channel("declare").await?;
        let answer = self.send(&channel, items, false).await;
        farewell(channel).await;
        answer.map_err(|refusal| refusal.error)
    }

    /// Looks for everything that has a name; bindings cannot be asked for.
    async fn look_for(&self, mut items: Vec<Item>) -> Result<()> {
        items.retain(|item| matches!(item, Item::Exchange(..) | Item::Queue(..)));
        let mut missing = Vec::new();
        let mut from = 0;
        while from < items.len() && missing.len() <= NAMED {
            // What is missing ends the channel, with all that was asked after it.
            let channel = self.link.channel("declare").await?;
            let answer = self.send(&channel, &items[from..], true).await;
            farewell(channel).await;
            match answer {
                Ok(()) => break,
                Err(refusal) if refusal.code == Some(404) => {
                    missing.push(items[from + refusal.place].to_string());
                    from += refusal.place + 1;
                }
                Err(refusal) => return Err(refusal.error),
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let more = missing.len() > NAMED;
        missing.truncate(NAMED);
        let mut names = missing.join(", ");
        if more {
            names.push_str(" and more");
        }
        Err(error::missing("declare", self.link.server(), &names))
    }

    /// Sends all items, then reads the answers, which come in the same order.
    async fn send(&self, channel: &Channel, items: &[Item], passive: bool) -> Result<(), Refusal> {
        let server = self.link.server();
        let answers: Vec<_> = items.iter().map(|item| item.send(channel, passive)).collect();
        for (place, answer) in answers.into_iter().enumerate() {
            let Some(answer) = self.patiently(answer).await else {
                let error = match self.link.blocked() {
                    Some(why) => error::blocked("declare", server, &why),
                    None => error::timed_out("declare", Effect::None, server),
                };
                return Err(Refusal { place, code: None, error });
            };
            if let Err(error) = answer {
                let code = match error.kind() {
                    lapin::ErrorKind::ProtocolError(error) => Some(error.get_id()),
                    _ => None,
                };
                let right = items[place].lacking(&error.to_string());
                let error = error::of_declaring(server, Some(right), &error);
                return Err(Refusal { place, code, error });
            }
        }
        Ok(())
    }

    /// What is answered, unless that takes too long, or the broker is known to answer nobody.
    async fn patiently<T>(&self, mut answer: BoxFuture<'_, T>) -> Option<T> {
        for _ in 0..PATIENCE {
            let patience = self.link.server().response_timeout;
            if let Ok(answer) = tokio::time::timeout(patience, &mut answer).await {
                return Some(answer);
            }
            if self.link.blocked().is_some() {
                break;
            }
        }
        None
    }

    fn everything(&self) -> Vec<Item> {
        let names = &self.names;
        let mut items = vec![
            Item::Exchange(names.orphan(), ExchangeKind::Fanout, FieldTable::default()),
            Item::Queue(names.orphan(), self.typed()),
            Item::Bind(names.orphan(), names.orphan(), ShortString::default()),
            Item::Exchange(names.dead(), ExchangeKind::Fanout, FieldTable::default()),
            Item::Queue(names.dead(), self.typed()),
            Item::Bind(names.dead(), names.dead(), ShortString::default()),
            self.topic_exchange(names.due()),
            Item::Queue(names.log(), self.log()),
            Item::Exchange(names.log(), ExchangeKind::Fanout, FieldTable::default()),
            Item::Bind(names.log(), names.log(), ShortString::default()),
        ];
        if self.mode == TopologyMode::Plugin {
            let mut arguments = FieldTable::default();
            arguments.insert("x-delayed-type".into(), text("fanout"));
            let kind = ExchangeKind::Custom(DELAYED.to_owned());
            items.push(Item::Exchange(names.delayed(), kind, arguments));
            items.push(Item::Chain(names.delayed(), names.due(), ShortString::default()));
            return items;
        }
        // From the lowest up: no queue is there before the exchange that its messages go to.
        for level in 0..LEVELS {
            items.push(self.topic_exchange(names.level(level)));
            items.push(Item::Chain(
                names.level(level),
                self.below(level),
                ladder::binding(level, 0),
            ));
        }
        for step in ladder::steps(self.queues) {
            let queue = names.step(step.level, step.digit);
            items.push(Item::Queue(queue.clone(), self.step(step)));
            let key = ladder::binding(step.level, step.digit);
            items.push(Item::Bind(names.level(step.level), queue, key));
        }
        items
    }

    fn ready_queue(&self, topic: &Topic) -> Vec<Item> {
        let mut arguments = self.typed();
        arguments.insert("x-dead-letter-exchange".into(), long(&self.names.dead()));
        if self.queues == QueueKind::Quorum {
            arguments.insert("x-delivery-limit".into(), DELIVERY_LIMIT.into());
        }
        let queue = self.names.ready(topic);
        vec![
            Item::Queue(queue.clone(), arguments),
            Item::Bind(self.names.due(), queue, topic.binding()),
        ]
    }

    /// The exchange to which messages of this level go when they have lived their time.
    fn below(&self, level: usize) -> ShortString {
        match level {
            0 => self.names.due(),
            level => self.names.level(level - 1),
        }
    }

    /// An exchange that loses nothing: what no binding knows goes to the orphans. Without that, a few
    /// such messages would hold up all that wait in the queue behind them.
    fn topic_exchange(&self, name: ShortString) -> Item {
        let mut arguments = FieldTable::default();
        arguments.insert("alternate-exchange".into(), long(&self.names.orphan()));
        Item::Exchange(name, ExchangeKind::Topic, arguments)
    }

    /// The arguments of any queue that holds messages.
    fn typed(&self) -> FieldTable {
        let mut arguments = FieldTable::default();
        let kind = match self.queues {
            QueueKind::Quorum => "quorum",
            QueueKind::Classic => "classic",
        };
        arguments.insert("x-queue-type".into(), text(kind));
        arguments
    }

    fn step(&self, step: Step) -> FieldTable {
        let mut arguments = self.typed();
        arguments.insert("x-message-ttl".into(), step.ttl_ms.into());
        arguments.insert("x-dead-letter-exchange".into(), long(&self.below(step.level)));
        if self.queues == QueueKind::Quorum {
            // A message leaves its queue only once the next has it; the broker does that only for
            // queues that refuse what they cannot take.
            arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
            arguments.insert("x-overflow".into(), text("reject-publish"));
        }
        arguments
    }

    fn log(&self) -> FieldTable {
        let segment = (self.log_bytes / SEGMENTS).clamp(SMALLEST_SEGMENT, LARGEST_SEGMENT);
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

/// Why an item was not taken, and which.
struct Refusal {
    place: usize,
    code: Option<u16>,
    error: dq_core::Error,
}

/// Ends a channel that has done its work, or has been ended already.
async fn farewell(channel: Channel) {
    if channel.status().connected() {
        let over = channel.close(200, "done".into());
        tokio::time::timeout(std::time::Duration::from_millis(500), over).await.ok();
    }
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

fn long(name: &ShortString) -> AMQPValue {
    text(name.as_str())
}
