//! Delay ladders, declared with raw `lapin`: quorum queues, TTL and dead-lettering, which determine
//! a hop's cost. Both ladders omit the backend's safety features (alternate exchanges, a delivery
//! limit).
//!
//! A ladder has a level per delay digit, and a level has a queue per nonzero digit value. A queue
//! holds messages for its value's time (message TTL), then dead-letters them to the next lower
//! level's exchange. So a message passes one queue per nonzero digit.

use std::fmt::Write as _;

use lapin::options::{
    ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, ExchangeKind};

use super::raw::{quorum, text};
use crate::plan::Result;

pub(super) const READY: &str = "ready";

pub(super) const DUE: &str = "due";

#[derive(Debug)]
pub(super) struct Layout {
    pub(super) name: &'static str,
    /// The lowest digit's unit, in milliseconds.
    tick_ms: u64,
    radices: &'static [u32],
    /// If `true`, routing keys have all digits, highest first. If `false`, they start with the
    /// lowest digit and end with the highest nonzero one.
    coarse_first: bool,
    /// Scaled-down hold times: milliseconds per digit unit, by level. A run ends within seconds,
    /// but messages still wait in a queue rather than pass straight through. A hop's cost does not
    /// depend on them.
    scaled_ms: &'static [u32],
}

/// The backend's layout for delays above one minute. Its real units are ten seconds, a quarter of
/// an hour, a day and so on.
pub(super) const CALENDAR: Layout = Layout {
    name: "calendar",
    tick_ms: 10_000,
    radices: &[90, 96, 30, 12, 10],
    coarse_first: false,
    scaled_ms: &[20, 20, 50, 50, 50],
};

/// The layout of NServiceBus and Celery, from one second up.
pub(super) const BINARY: Layout = Layout {
    name: "binary",
    tick_ms: 1_000,
    radices: &[2; 28],
    coarse_first: true,
    scaled_ms: &[300; 28],
};

impl Layout {
    fn digits(&self, delay_ms: u64) -> Vec<u32> {
        let mut ticks = delay_ms / self.tick_ms;
        let digit = |radix: &u32| {
            let digit = ticks % u64::from(*radix);
            ticks /= u64::from(*radix);
            u32::try_from(digit).expect("a digit is smaller than its radix")
        };
        self.radices.iter().map(digit).collect()
    }

    pub(super) fn hops(&self, delay_ms: u64) -> usize {
        self.digits(delay_ms).iter().filter(|digit| **digit != 0).count()
    }

    pub(super) fn route(&self, delay_ms: u64) -> (String, String) {
        let mut digits = self.digits(delay_ms);
        let highest = digits.iter().rposition(|digit| *digit != 0);
        if self.coarse_first {
            digits.reverse();
        } else {
            digits.truncate(highest.map_or(0, |level| level + 1));
        }
        let mut key = String::new();
        for digit in digits {
            // Writing to a String cannot fail.
            let _ = write!(key, "{digit}.");
        }
        key.push_str(READY);
        (highest.map_or_else(|| DUE.to_owned(), |level| self.exchange(level)), key)
    }

    fn exchange(&self, level: usize) -> String {
        format!("{}.l{level}", self.name)
    }

    fn below(&self, level: usize) -> String {
        level.checked_sub(1).map_or_else(|| DUE.to_owned(), |below| self.exchange(below))
    }

    /// Declares all queues and exchanges. Call [`ready`] first.
    pub(super) async fn declare(&self, channel: &Channel) -> Result<()> {
        let levels = self.radices.len();
        for (level, radix) in self.radices.iter().enumerate() {
            let (exchange, below) = (ShortString::from(self.exchange(level)), self.below(level));
            topic(channel, &exchange).await?;
            // Routing-key words before this level's digit.
            let before = if self.coarse_first { levels - 1 - level } else { level };
            let key = |digit: u32| ShortString::from(format!("{}{digit}.#", "*.".repeat(before)));
            let (options, none) = (ExchangeBindOptions::default(), FieldTable::default());
            let bind = channel.exchange_bind(
                below.as_str().into(),
                exchange.clone(),
                key(0),
                options,
                none,
            );
            bind.await?;
            for digit in 1..*radix {
                let queue = ShortString::from(format!("{exchange}.{digit}"));
                let mut arguments = quorum();
                let ttl = i64::from(digit * self.scaled_ms[level]);
                arguments.insert("x-message-ttl".into(), ttl.into());
                arguments.insert("x-dead-letter-exchange".into(), text(&below));
                arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
                arguments.insert("x-overflow".into(), text("reject-publish"));
                declare(channel, &queue, arguments).await?;
                let (options, none) = (QueueBindOptions::default(), FieldTable::default());
                channel.queue_bind(queue, exchange.clone(), key(digit), options, none).await?;
            }
        }
        Ok(())
    }
}

pub(super) async fn ready(channel: &Channel) -> Result<()> {
    topic(channel, &DUE.into()).await?;
    declare(channel, &READY.into(), quorum()).await?;
    let (key, options, none) =
        (format!("#.{READY}"), QueueBindOptions::default(), FieldTable::default());
    channel.queue_bind(READY.into(), DUE.into(), key.into(), options, none).await?;
    Ok(())
}

async fn topic(channel: &Channel, name: &ShortString) -> Result<()> {
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let none = FieldTable::default();
    channel.exchange_declare(name.clone(), ExchangeKind::Topic, options, none).await?;
    Ok(())
}

async fn declare(channel: &Channel, name: &ShortString, arguments: FieldTable) -> Result<()> {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(name.clone(), options, arguments).await?;
    Ok(())
}
