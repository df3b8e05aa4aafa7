//! Adds jobs to the example queues, first in bulk, then continuously.

use std::time::Duration;

use dq_core::{Dq, DurationExt, Entropy, Filter, JobState, Result};
use serde_json::{Value, json};

use super::handlers::{COURIERS, INVOICES, MEETINGS, NEWSLETTER, ORDERS, TICKETS, Work};

const TICK: Duration = Duration::from_secs(1);

/// Minimum number of ready jobs in the queue with the backlog.
const BACKLOG: u64 = 160;

/// Maximum number of dead jobs per queue; older ones are removed.
const MAX_DEAD: u64 = 60;

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

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) async fn fill(&mut self) -> Result<()> {
        for _ in 0..90 {
            // Due now, so that they start the history.
            self.order(0, 1).await?;
        }
        for _ in 0..140 {
            self.order(5, 900).await?;
        }
        for _ in 0..12 {
            self.dying_order().await?;
        }
        for _ in 0..9 {
            self.failing_order().await?;
        }
        for _ in 0..120 {
            self.meeting(5, 86_400).await?;
        }
        for _ in 0..24 {
            self.ticket(0, 60).await?;
        }
        for _ in 0..30 {
            self.ticket(60, 14_400).await?;
        }
        self.top_up_backlog(BACKLOG + 80).await?;
        for _ in 0..180 {
            let reader = self.next();
            let about = json!({ "reader": reader, "issue": "2027-02" });
            let work = Work { about, takes_ms: 80, ..Work::default() };
            self.add(NEWSLETTER, &work, self.number(0, 3_600), None, None).await?;
        }
        for _ in 0..36 {
            let invoice = self.next();
            let about = json!({ "invoice": format!("2027-{invoice}"), "format": "ubl" });
            let work = Work { about, takes_ms: 200, ..Work::default() };
            let key = format!("invoice-{invoice}");
            self.add(INVOICES, &work, self.number(0, 7_200), Some(key), None).await?;
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
        self.order(10, 180).await?;
        if tick.is_multiple_of(2) {
            // An order was paid. Most numbers belong to something else or to an order that ran, and
            // then nothing is cancelled.
            let paid = format!("order-{}", self.number(self.next.saturating_sub(300), self.next));
            let _ = self.dq.queue(ORDERS)?.cancel(paid).await?;
        }
        if tick.is_multiple_of(4) {
            self.meeting(5, 7_200).await?;
        }
        if tick.is_multiple_of(6) {
            self.ticket(5, 600).await?;
        }
        if tick.is_multiple_of(20) {
            self.dying_order().await?;
        }
        if tick.is_multiple_of(10) {
            self.top_up_backlog(BACKLOG).await?;
            for queue in [ORDERS, MEETINGS, TICKETS, COURIERS] {
                self.bury(queue).await?;
            }
        }
        Ok(())
    }

    async fn order(&mut self, from: u64, to: u64) -> Result<()> {
        let order = self.next();
        let about = json!({
            "order": order, "shop": self.number(1, 9), "amount": self.number(900, 90_000),
            "currency": self.one_of(&["EUR", "USD", "CNY"]),
        });
        let mut work = Work { about, takes_ms: self.number(15, 180), ..Work::default() };
        match self.number(0, 100) {
            0..4 => return self.failing_order().await,
            4..12 => work.skips_with = Some("the order was paid".to_owned()),
            _ => {}
        }
        let key = Some(format!("order-{order}"));
        self.add(ORDERS, &work, self.number(from, to), key, None).await
    }

    async fn failing_order(&mut self) -> Result<()> {
        let order = self.next();
        let about = json!({ "order": order, "shop": self.number(1, 9) });
        let error = "connect to payments.internal:8443: connection refused".to_owned();
        let mut work = Work { about, takes_ms: 30, fails_with: Some(error), ..Work::default() };
        work.until_attempt = 3;
        self.add(ORDERS, &work, 0, Some(format!("order-{order}")), None).await
    }

    async fn dying_order(&mut self) -> Result<()> {
        let (order, shop) = (self.next(), self.number(1, 9));
        let error = match self.number(0, 3) {
            0 => format!("order {order} not found in shop {shop}"),
            1 => format!("stock of item {} would become negative", self.number(100, 999)),
            _ => "payments.internal answers 402: the card was refused".to_owned(),
        };
        let about = json!({ "order": order, "shop": shop });
        let work = Work { about, takes_ms: 40, fails_with: Some(error), ..Work::default() };
        self.add(ORDERS, &work, 0, Some(format!("order-{order}")), Some(1)).await
    }

    async fn meeting(&mut self, from: u64, to: u64) -> Result<()> {
        let (meeting, person) = (self.number(100, 400), self.number(1, 12));
        let room = self.one_of(&["Einstein", "Curie", "Noether", "Turing"]);
        let about = json!({ "meeting": meeting, "person": person, "room": room });
        let mut work = Work { about, takes_ms: self.number(20, 90), ..Work::default() };
        match self.number(0, 40) {
            0 => {
                work.fails_with = Some("SMTP 451: try again later".to_owned());
                work.until_attempt = 2;
            }
            1 => work.skips_with = Some("the meeting was called off".to_owned()),
            _ => {}
        }
        let key = Some(format!("meeting-{meeting}-{person}"));
        self.add(MEETINGS, &work, self.number(from, to), key, None).await
    }

    async fn ticket(&mut self, from: u64, to: u64) -> Result<()> {
        let ticket = self.next();
        let level = self.number(1, 4);
        let about =
            json!({ "ticket": ticket, "level": level, "team": self.one_of(&["net", "db"]) });
        let mut work = Work { about, takes_ms: self.number(100, 900), ..Work::default() };
        let mut attempts = None;
        match self.number(0, 12) {
            0 | 1 => {
                work.fails_with = Some("tickets.internal answers 503".to_owned());
                work.until_attempt = 4;
            }
            2 => {
                work.fails_with = Some(format!("nobody is on call for level {level}"));
                attempts = Some(1);
            }
            _ => {}
        }
        self.add(TICKETS, &work, self.number(from, to), Some(format!("ticket-{ticket}")), attempts)
            .await
    }

    /// Adds overdue courier jobs until this many are ready.
    async fn top_up_backlog(&mut self, jobs: u64) -> Result<()> {
        let ready = self.dq.queue(COURIERS)?.stats().await?.ready;
        for _ in ready..jobs {
            let parcel = self.next();
            let about = json!({ "parcel": parcel, "courier": self.number(1, 60) });
            let mut work = Work { about, takes_ms: self.number(800, 2_500), ..Work::default() };
            if self.number(0, 30) == 0 {
                work.fails_with = Some("SMS gateway: number is not reachable".to_owned());
            }
            self.add(COURIERS, &work, 0, Some(format!("parcel-{parcel}")), Some(2)).await?;
        }
        Ok(())
    }

    /// Removes old dead jobs, which nobody replays in a demo that runs for days.
    async fn bury(&self, queue: &str) -> Result<()> {
        let handle = self.dq.queue(queue)?;
        if handle.stats().await?.dead <= MAX_DEAD {
            return Ok(());
        }
        let latest = handle.browse(JobState::Dead).order(dq_core::Order::Descending);
        let latest = latest.payloads(false).limit(MAX_DEAD as usize / 2).await?;
        // By due time, because no filter uses the time of death. Jobs that were very late go
        // earlier.
        if let Some((_, died)) = latest.jobs.last().and_then(|view| view.dead.as_ref()) {
            handle.remove_where(Filter::new().due(..*died)).await?;
        }
        Ok(())
    }

    async fn add(
        &self,
        queue: &str,
        work: &Work,
        seconds: u64,
        key: Option<String>,
        attempts: Option<u32>,
    ) -> Result<()> {
        let payload: Value = serde_json::to_value(work).unwrap_or_default();
        let job = self.dq.queue(queue)?.schedule(payload.to_string(), "application/json");
        let mut job = job.after(seconds.seconds() + self.number(0, 1_000).millis());
        if let Some(key) = key {
            job = job.key(key);
        }
        if let Some(attempts) = attempts {
            job = job.max_attempts(attempts);
        }
        // A taken key keeps its job.
        let _ = job.await?;
        Ok(())
    }
}
