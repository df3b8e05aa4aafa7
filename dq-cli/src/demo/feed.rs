//! Adds jobs to the example queues, first in bulk, then continuously.

use std::time::Duration;

use dq_core::{Backend as _, Dq, DurationExt, Entropy, Filter, Result};
use serde_json::{Value, json};

use super::handlers::{COURIERS, INVOICES, MEETINGS, NEWSLETTER, ORDERS, TICKETS, Work};

const TICK: Duration = Duration::from_secs(1);

/// Minimum number of ready jobs in the queue with the backlog.
const BACKLOG: u64 = 160;

/// How long after its due time a dead job stays. Nobody replays it in a demo that runs for days.
const DEAD_STAYS: Duration = Duration::from_secs(1_800);

#[derive(Clone, Copy)]
enum Kind {
    Order,
    FailingOrder,
    DyingOrder,
    Meeting,
    Ticket,
    Parcel,
    Letter,
    Invoice,
}

pub(super) struct Feed {
    dq: Dq,
    entropy: Entropy,
    next: u64,
}

impl Feed {
    pub(super) fn new(dq: Dq) -> Self {
        Self { dq, entropy: Entropy::from_os(), next: 4_711 }
    }

    /// Returns a random number; `to` is exclusive.
    fn number(&self, from: u64, to: u64) -> u64 {
        from + (self.entropy.fraction() * (to - from) as f64) as u64
    }

    fn one_of<T: Copy>(&self, values: &[T]) -> T {
        values[usize::try_from(self.number(0, values.len() as u64)).unwrap_or(0)]
    }

    pub(super) async fn fill(&mut self) -> Result<()> {
        for (kind, jobs, from, to) in [
            // Due now, so that they start the history.
            (Kind::Order, 90, 0, 1),
            (Kind::Order, 140, 5, 900),
            (Kind::DyingOrder, 12, 0, 1),
            (Kind::FailingOrder, 9, 0, 1),
            (Kind::Meeting, 120, 5, 86_400),
            (Kind::Ticket, 24, 0, 60),
            (Kind::Ticket, 30, 60, 14_400),
            (Kind::Parcel, BACKLOG + 80, 0, 1),
            (Kind::Letter, 180, 0, 3_600),
            (Kind::Invoice, 36, 0, 7_200),
        ] {
            for _ in 0..jobs {
                self.add(kind, from, to).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn run(&mut self) {
        let mut interval = tokio::time::interval(TICK);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for tick in 0_u64.. {
            interval.tick().await;
            // The next tick retries. The memory store fails only when closed.
            if let Err(error) = self.tick(tick).await {
                tracing::warn!(%error, "the demo cannot add jobs");
            }
        }
    }

    async fn tick(&mut self, tick: u64) -> Result<()> {
        for (every, kind, from, to) in [
            (1, Kind::Order, 10, 180),
            (4, Kind::Meeting, 5, 7_200),
            (6, Kind::Ticket, 5, 600),
            (20, Kind::DyingOrder, 0, 1),
        ] {
            if tick.is_multiple_of(every) {
                self.add(kind, from, to).await?;
            }
        }
        if tick.is_multiple_of(2) {
            // An order was paid. Most numbers belong to something else or to an order that ran, and
            // then nothing is cancelled.
            let paid = format!("order-{}", self.number(self.next.saturating_sub(300), self.next));
            let _ = self.dq.queue(ORDERS)?.cancel(paid).await?;
        }
        if tick.is_multiple_of(10) {
            for _ in self.dq.queue(COURIERS)?.stats().await?.ready..BACKLOG {
                self.add(Kind::Parcel, 0, 1).await?;
            }
            let before = self.dq.backend().now().await? - DEAD_STAYS;
            for queue in [ORDERS, MEETINGS, TICKETS, COURIERS] {
                self.dq.queue(queue)?.remove_where(Filter::new().due(..before)).await?;
            }
        }
        Ok(())
    }

    async fn add(&mut self, kind: Kind, from: u64, to: u64) -> Result<()> {
        self.next += 1;
        let (queue, key, work) = self.job(kind);
        let attempts = work.attempts;
        let payload: Value = serde_json::to_value(work).unwrap_or_default();
        let job = self.dq.queue(queue)?.schedule(payload.to_string(), "application/json");
        let delay = self.number(from, to).seconds() + self.number(0, 1_000).millis();
        let mut job = job.after(delay).key(key);
        if let Some(attempts) = attempts {
            job = job.max_attempts(attempts);
        }
        // A taken key keeps its job.
        let _ = job.await?;
        Ok(())
    }

    fn job(&self, kind: Kind) -> (&'static str, String, Work) {
        let (number, shop) = (self.next, self.number(1, 9));
        let order = format!("order-{number}");
        match kind {
            Kind::Order => {
                let about = json!({
                    "order": number, "shop": shop, "amount": self.number(900, 90_000),
                    "currency": self.one_of(&["EUR", "USD", "CNY"]),
                });
                let work = Work::new(about, self.number(15, 180));
                match self.number(0, 100) {
                    0..4 => self.job(Kind::FailingOrder),
                    4..12 => (ORDERS, order, work.skips("the order was paid")),
                    _ => (ORDERS, order, work),
                }
            }
            Kind::FailingOrder => {
                let work = Work::new(json!({ "order": number, "shop": shop }), 30);
                let error = "connect to payments.internal:8443: connection refused";
                (ORDERS, order, work.fails(error).until(3))
            }
            Kind::DyingOrder => {
                let error = match self.number(0, 3) {
                    0 => format!("order {number} not found in shop {shop}"),
                    1 => format!("stock of item {} would become negative", self.number(100, 999)),
                    _ => "payments.internal answers 402: the card was refused".to_owned(),
                };
                let work = Work::new(json!({ "order": number, "shop": shop }), 40);
                (ORDERS, order, work.fails(error).attempts(1))
            }
            Kind::Meeting => {
                let (meeting, person) = (self.number(100, 400), self.number(1, 12));
                let room = self.one_of(&["Einstein", "Curie", "Noether", "Turing"]);
                let about = json!({ "meeting": meeting, "person": person, "room": room });
                let work = Work::new(about, self.number(20, 90));
                let work = match self.number(0, 40) {
                    0 => work.fails("SMTP 451: try again later").until(2),
                    1 => work.skips("the meeting was called off"),
                    _ => work,
                };
                (MEETINGS, format!("meeting-{meeting}-{person}"), work)
            }
            Kind::Ticket => {
                let (level, team) = (self.number(1, 4), self.one_of(&["net", "db"]));
                let about = json!({ "ticket": number, "level": level, "team": team });
                let work = Work::new(about, self.number(100, 900));
                let work = match self.number(0, 12) {
                    0 | 1 => work.fails("tickets.internal answers 503").until(4),
                    2 => work.fails(format!("nobody is on call for level {level}")).attempts(1),
                    _ => work,
                };
                (TICKETS, format!("ticket-{number}"), work)
            }
            Kind::Parcel => {
                let about = json!({ "parcel": number, "courier": self.number(1, 60) });
                let work = Work::new(about, self.number(800, 2_500)).attempts(2);
                let work = match self.number(0, 30) {
                    0 => work.fails("SMS gateway: number is not reachable"),
                    _ => work,
                };
                (COURIERS, format!("parcel-{number}"), work)
            }
            Kind::Letter => {
                let work = Work::new(json!({ "reader": number, "issue": "2027-02" }), 80);
                (NEWSLETTER, format!("reader-{number}"), work)
            }
            Kind::Invoice => {
                let about = json!({ "invoice": format!("2027-{number}"), "format": "ubl" });
                (INVOICES, format!("invoice-{number}"), Work::new(about, 200))
            }
        }
    }
}
