//! The names of all exchanges and queues.
//!
//! They carry the version of the layout, because what is declared under a name can never be declared
//! otherwise.

use dq_core::QueueName;
use lapin::types::ShortString;

use crate::ladder::LEVELS;

/// Longer names and routing keys are not possible in AMQP.
const LONGEST: usize = 255;

/// The longest prefix that settings allow, `.v1.q.`, and a topic must fit a name.
const LONGEST_TOPIC: usize = LONGEST - 64 - ".v1.q.".len();

/// The names under one prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    base: String,
}

impl Names {
    /// The names that begin with this prefix.
    pub(crate) fn new(prefix: &str) -> Self {
        Self { base: format!("{prefix}.v1") }
    }

    fn name(&self, rest: impl std::fmt::Display) -> ShortString {
        format!("{}.{rest}", self.base).into()
    }

    /// Whether something of this name is one of ours.
    pub(crate) fn is_ours(&self, name: &str) -> bool {
        name.strip_prefix(self.base.as_str()).is_some_and(|rest| rest.starts_with('.'))
    }

    /// The exchange, and the queue behind it, for what no binding knows.
    pub(crate) fn orphan(&self) -> ShortString {
        self.name("orphan")
    }

    /// The exchange from which jobs go to the ready queues.
    pub(crate) fn due(&self) -> ShortString {
        self.name("due")
    }

    /// The exchange, and the queue behind it, for what ready queues gave up on.
    pub(crate) fn dead(&self) -> ShortString {
        self.name("dead")
    }

    /// The stream of all changes.
    pub(crate) fn log(&self) -> ShortString {
        self.name("log")
    }

    /// The exchange of the plugin.
    pub(crate) fn delayed(&self) -> ShortString {
        self.name("delayed")
    }

    /// The queue of one canary. Names that the broker makes up begin otherwise, so that who has rights
    /// for ours only could not declare them.
    pub(crate) fn canary(&self, number: u64) -> ShortString {
        self.name(format_args!("canary.{number:016x}"))
    }

    /// The exchange of one level of the ladder.
    pub(crate) fn level(&self, level: usize) -> ShortString {
        debug_assert!(level < LEVELS, "there is no level {level}");
        self.name(format_args!("l{level}"))
    }

    /// The queue in which jobs wait for one digit of one level.
    pub(crate) fn step(&self, level: usize, digit: u32) -> ShortString {
        self.name(format_args!("l{level}.{digit}"))
    }

    /// The queue whose ready queue has this name. Those with the longest names are not known.
    pub(crate) fn queue_of(&self, ready: &str) -> Option<QueueName> {
        let topic = ready.strip_prefix(self.base.as_str())?.strip_prefix(".q.")?;
        let mut name = String::with_capacity(topic.len());
        let mut rest = topic.chars();
        while let Some(c) = rest.next() {
            name.push(match c {
                '%' => match rest.next()? {
                    'd' => '.',
                    's' => '*',
                    'h' => '#',
                    '%' => '%',
                    _ => return None,
                },
                c => c,
            });
        }
        QueueName::new(name).ok()
    }

    /// The queue from which runners take jobs that are due.
    pub(crate) fn ready(&self, topic: &Topic) -> ShortString {
        self.name(format_args!("q.{}", topic.as_str()))
    }
}

/// The name of a queue as one word of a routing key.
///
/// Words are separated by dots, and `*` and `#` stand for any word in bindings, so these are written
/// as `%d`, `%s` and `%h`, and `%` itself as `%%`. Where that is too long for a name, `%x` and all
/// bytes in an alphabet of 64 follow; two names never share a topic.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Topic(String);

impl Topic {
    /// The topic of a queue.
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
        if topic.len() > LONGEST_TOPIC {
            topic = format!("%x{}", in_64(name.as_bytes()));
        }
        Self(topic)
    }

    /// The word itself.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The key by which a ready queue is bound: any digits, then this.
    pub(crate) fn binding(&self) -> ShortString {
        format!("#.{}", self.0).into()
    }
}

/// Three bytes as four characters.
fn in_64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let three = chunk.iter().fold(0u32, |sum, byte| (sum << 8) | u32::from(*byte));
        let three = three << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            let six = (three >> (18 - 6 * place)) & 63;
            text.push(char::from(ALPHABET[six as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn topic(name: &str) -> String {
        Topic::of(&QueueName::new(name).unwrap()).0
    }

    #[test]
    fn words_are_whole_and_readable() {
        assert_eq!(topic("orders"), "orders");
        assert_eq!(topic("mail.out #1*"), "mail%dout %h1%s");
        assert_eq!(topic("100%"), "100%%");
        assert_eq!(topic("%d"), "%%d");
        assert_eq!(topic("ÄÖÜ"), "ÄÖÜ");
        let long = topic(&".".repeat(128));
        assert!(long.starts_with("%x") && long.len() <= LONGEST_TOPIC, "{long}");
        assert_ne!(long, topic(&".".repeat(127)));
    }

    #[test]
    fn bytes_are_spelt_as_everywhere() {
        assert_eq!(in_64(b""), "");
        assert_eq!(in_64(b"f"), "Zg");
        assert_eq!(in_64(b"fo"), "Zm8");
        assert_eq!(in_64(b"foobar"), "Zm9vYmFy");
    }

    proptest! {
        #[test]
        fn topics_fit_and_differ(name in r"[a-z.*#%€ ]{1,40}", other in r"[.*#%x]{90,128}") {
            let short = topic(&name);
            // That it can be read back shows that no two names share one.
            let ready = Names::new("a.b").ready(&Topic(short.clone()));
            let back = Names::new("a.b").queue_of(ready.as_str()).unwrap();
            prop_assert_eq!(back.as_str(), name);
            prop_assert_eq!(Names::new("a").queue_of(ready.as_str()), None);
            let long = topic(&other);
            for topic in [&short, &long] {
                prop_assert!(!topic.contains(['.', '*', '#']) && topic.len() <= LONGEST_TOPIC);
            }
            let names = Names::new(&"p".repeat(64));
            let queue = QueueName::new(&other).unwrap();
            prop_assert!(names.ready(&Topic::of(&queue)).as_str().len() <= LONGEST);
        }
    }
}
