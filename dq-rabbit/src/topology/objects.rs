//! Declares the broker's objects: exchanges, queues, streams and bindings, with their arguments.

use lapin::ExchangeKind;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};

use super::declaration::Declaration;
use crate::config::{LadderKind, QueueKind, RabbitConfig, TopologyMode};
use crate::log::generation::Generation;
use crate::topology::ladder::{self, LadderQueue};
use crate::topology::names::{DIRECTORY_KEY, LEVELS, ObjectNames, Topic};

/// Attempts are counted in the log and limited far below this. Brokers from 4.0 on dead-letter
/// after 20 deliveries without the argument.
const DELIVERY_LIMIT: i64 = 1000;

/// A generation is deleted as a whole, so this does not affect retention.
const SEGMENT_BYTES: i64 = 64_000_000;
/// The broker keeps the newest records, some thousands.
const DIRECTORY_BYTES: i64 = 512_000;
const DIRECTORY_SEGMENT_BYTES: i64 = 64_000;

const DELAYED: &str = "x-delayed-message";

#[derive(Debug)]
pub(super) struct Objects {
    pub(super) names: ObjectNames,
    pub(super) mode: TopologyMode,
    queues: QueueKind,
    ladder: LadderKind,
}

impl Objects {
    pub(super) fn new(config: &RabbitConfig) -> Self {
        Self {
            names: ObjectNames::new(&config.prefix),
            mode: config.topology,
            queues: config.queues,
            ladder: config.ladder,
        }
    }

    pub(super) fn log(&self) -> Vec<Declaration> {
        let (directory, generations) = (self.names.directory(), self.names.generations());
        let mut arguments = stream(DIRECTORY_SEGMENT_BYTES);
        arguments.insert("x-max-length-bytes".into(), DIRECTORY_BYTES.into());
        vec![
            Declaration::Queue(directory.clone(), arguments),
            Declaration::Exchange(generations.clone(), ExchangeKind::Direct, FieldTable::default()),
            Declaration::QueueBinding(generations, directory, DIRECTORY_KEY.into()),
        ]
    }

    /// The stream of one log generation. Its arguments depend on no setting, so that settings can
    /// change. They limit neither size nor age.
    pub(super) fn generation(&self, generation: Generation) -> Vec<Declaration> {
        let name = self.names.generation(generation);
        let key = self.names.generation_key(generation);
        vec![
            Declaration::Queue(name.clone(), stream(SEGMENT_BYTES)),
            Declaration::QueueBinding(self.names.generations(), name, key),
        ]
    }

    pub(super) fn messages(&self) -> Vec<Declaration> {
        let names = &self.names;
        let mut declarations = self.fanout_queue(&names.orphan());
        declarations.extend(self.fanout_queue(&names.dead()));
        declarations.push(self.topic_exchange(names.due()));
        match self.mode {
            TopologyMode::Plugin => declarations.extend(self.plugin()),
            TopologyMode::Declare | TopologyMode::Passive => declarations.extend(self.ladder()),
        }
        declarations
    }

    fn plugin(&self) -> [Declaration; 2] {
        let names = &self.names;
        let mut arguments = FieldTable::default();
        arguments.insert("x-delayed-type".into(), text("fanout"));
        let kind = ExchangeKind::Custom(DELAYED.to_owned());
        [
            Declaration::Exchange(names.delayed(), kind, arguments),
            Declaration::ExchangeBinding(names.delayed(), names.due(), ShortString::default()),
        ]
    }

    fn ladder(&self) -> Vec<Declaration> {
        let names = &self.names;
        let mut declarations = Vec::new();
        if self.ladder == LadderKind::None {
            return declarations;
        }
        // Lowest level first: each exchange is bound to the next lower one, which must exist.
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

    pub(super) fn ready_queue(&self, topic: &Topic) -> Vec<Declaration> {
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

    /// An exchange and a queue of the same name that gets all of its messages.
    fn fanout_queue(&self, name: &ShortString) -> Vec<Declaration> {
        vec![
            Declaration::Exchange(name.clone(), ExchangeKind::Fanout, FieldTable::default()),
            Declaration::Queue(name.clone(), self.queue_type()),
            Declaration::QueueBinding(name.clone(), name.clone(), ShortString::default()),
        ]
    }

    fn next_exchange(&self, level: usize) -> ShortString {
        match level {
            0 => self.names.due(),
            level => self.names.level(level - 1),
        }
    }

    /// With an alternate exchange, because a message without a binding would block all messages
    /// behind it in its queue.
    fn topic_exchange(&self, name: ShortString) -> Declaration {
        let mut arguments = FieldTable::default();
        arguments.insert("alternate-exchange".into(), name_value(&self.names.orphan()));
        Declaration::Exchange(name, ExchangeKind::Topic, arguments)
    }

    fn queue_type(&self) -> FieldTable {
        let mut arguments = FieldTable::default();
        let kind = match self.queues {
            QueueKind::Quorum => "quorum",
            QueueKind::Classic => "classic",
        };
        arguments.insert("x-queue-type".into(), text(kind));
        if self.queues == QueueKind::Quorum {
            spread_leaders(&mut arguments);
        }
        arguments
    }

    fn ladder_arguments(&self, queue: LadderQueue) -> FieldTable {
        let mut arguments = self.queue_type();
        arguments.insert("x-message-ttl".into(), queue.ttl_ms.into());
        arguments
            .insert("x-dead-letter-exchange".into(), name_value(&self.next_exchange(queue.level)));
        if self.queues == QueueKind::Quorum {
            // A message leaves its queue only when the next queue has confirmed it. The broker
            // requires `reject-publish` for that.
            arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
            arguments.insert("x-overflow".into(), text("reject-publish"));
        }
        arguments
    }
}

fn stream(segment_bytes: i64) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("stream"));
    arguments.insert("x-stream-max-segment-size-bytes".into(), segment_bytes.into());
    spread_leaders(&mut arguments);
    arguments
}

/// By default, every leader is on the node that declares it.
fn spread_leaders(arguments: &mut FieldTable) {
    arguments.insert("x-queue-leader-locator".into(), text("balanced"));
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

fn name_value(name: &ShortString) -> AMQPValue {
    text(name.as_str())
}
