//! Names of exchanges and queues, and routing keys.
//!
//! They contain the layout's version, because a declared object's arguments never change.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dq_core::QueueName;
use lapin::types::ShortString;

use crate::log::generation::Generation;

/// The [`ladder`](crate::topology::ladder)'s levels, one for each digit. Another number needs
/// another layout version.
pub(crate) const LEVELS: usize = 6;

/// The log directory's routing key.
pub(crate) const DIRECTORY_KEY: &str = "directory";

/// AMQP's limit for names and routing keys, in bytes.
const MAX_NAME: usize = 255;

/// The longest prefix, `.v1.q.` and the topic fit into a name.
const MAX_TOPIC: usize = MAX_NAME - 64 - ".v1.q.".len();

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectNames {
    base: String,
}

impl ObjectNames {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { base: format!("{prefix}.v1") }
    }

    fn name(&self, rest: impl std::fmt::Display) -> ShortString {
        format!("{}.{rest}", self.base).into()
    }

    /// Whether this object belongs to the prefix.
    pub(crate) fn contains(&self, name: &str) -> bool {
        name.strip_prefix(self.base.as_str()).is_some_and(|rest| rest.starts_with('.'))
    }

    /// Exchange and queue for messages that match no binding.
    pub(crate) fn orphan(&self) -> ShortString {
        self.name("orphan")
    }

    /// The exchange from the ladder to the ready queues.
    pub(crate) fn due(&self) -> ShortString {
        self.name("due")
    }

    /// Exchange and queue for the ready queues' dead letters and for foreign messages.
    pub(crate) fn dead(&self) -> ShortString {
        self.name("dead")
    }

    /// The stream that names the log's generations.
    pub(crate) fn directory(&self) -> ShortString {
        self.name("log")
    }

    pub(crate) fn generation(&self, generation: Generation) -> ShortString {
        self.name(format_args!("log.{}", generation.number()))
    }

    /// The routing key of a generation's stream.
    pub(crate) fn generation_key(&self, generation: Generation) -> ShortString {
        generation.number().to_string().into()
    }

    /// Whether this queue is a generation of the log or its directory.
    pub(crate) fn is_log(&self, queue: &str) -> bool {
        let rest = queue.strip_prefix(self.directory().as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// The exchange of the log. The routing key is a generation's number or [`DIRECTORY_KEY`].
    pub(crate) fn generations(&self) -> ShortString {
        self.name("generations")
    }

    /// The exchange of the plugin for delayed messages.
    pub(crate) fn delayed(&self) -> ShortString {
        self.name("delayed")
    }

    /// A temporary queue of `check`. The broker must not name it, because the user may need the
    /// prefix.
    pub(crate) fn canary(&self, number: u64) -> ShortString {
        self.name(format_args!("canary.{number:016x}"))
    }

    pub(crate) fn level(&self, level: usize) -> ShortString {
        debug_assert!(level < LEVELS, "no level {level}");
        self.name(format_args!("l{level}"))
    }

    pub(crate) fn ladder_queue(&self, level: usize, digit: u32) -> ShortString {
        self.name(format_args!("l{level}.{digit}"))
    }

    /// A job queue's ready queue.
    pub(crate) fn ready(&self, topic: &Topic) -> ShortString {
        self.name(format_args!("q.{}", topic.as_str()))
    }
}

/// A job queue's name as one word in a routing key.
///
/// Dots separate words, and `*` and `#` are wildcards, so these become `%d`, `%s` and `%h`, and `%`
/// becomes `%%`. If that is too long for a name, the topic is `%x` and the name in URL-safe base64.
/// Two names never share a topic.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Topic(String);

impl Topic {
    pub(crate) fn of(queue: &QueueName) -> Self {
        let name = queue.as_str();
        let mut topic = String::with_capacity(name.len());
        for c in name.chars() {
            match c {
                '.' => topic.push_str("%d"),
                '*' => topic.push_str("%s"),
                '#' => topic.push_str("%h"),
                '%' => topic.push_str("%%"),
                c => topic.push(c),
            }
        }
        if topic.len() > MAX_TOPIC {
            topic = format!("%x{}", URL_SAFE_NO_PAD.encode(name));
        }
        Self(topic)
    }

    /// The topic of a test message. No job queue has it: in their topics, `%` is followed by one of
    /// `d s h % x`.
    pub(crate) fn canary(queue: &ShortString) -> Self {
        Self(format!("%canary%{}", queue.as_str().replace('.', "-")))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Matches any digits before the topic.
    pub(crate) fn binding_key(&self) -> ShortString {
        format!("#.{}", self.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str) -> String {
        Topic::of(&QueueName::new(name).unwrap()).0
    }

    #[test]
    fn topics_are_single_readable_words() {
        assert_eq!(topic("orders"), "orders");
        assert_eq!(topic("mail.out #1*"), "mail%dout %h1%s");
        assert_eq!(topic("100%"), "100%%");
        assert_eq!(topic("%d"), "%%d");
        assert_eq!(topic("ÄÖÜ"), "ÄÖÜ");
        let queue = QueueName::new(".".repeat(100)).unwrap();
        let ready = ObjectNames::new(&"p".repeat(64)).ready(&Topic::of(&queue));
        assert!(ready.as_str().len() <= MAX_NAME && ready.as_str().contains(".%x"), "{ready}");
        assert_ne!(Topic::of(&queue).0, topic(&".".repeat(99)));
        let longest = QueueName::new(".".repeat(92) + "a").unwrap();
        let ready = ObjectNames::new(&"p".repeat(64)).ready(&Topic::of(&longest));
        assert_eq!(ready.as_str().len(), MAX_NAME, "as it is");
    }
}
