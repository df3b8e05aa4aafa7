//! State shared by a router's handlers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use dq_core::sync::lock;
use dq_core::{Error, ErrorKind};
use dq_ops::{Actor, FindingView, Forecasts, Ops, Overview, QueueSummary, Role, Session};
use futures_util::future::join_all;
use tokio::sync::watch;

use crate::auth::Auth;
use crate::cached::Cached;
use crate::live::Live;

/// How long a forecast of all queues is kept.
const FORECAST_AGE: Duration = Duration::from_secs(15);

/// How long a program waits for the forecast of all queues.
const FORECASTS_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a page waits for the forecast of the next day.
const DAY_AHEAD_TIMEOUT: Duration = Duration::from_millis(300);

/// Queues in that forecast at most, because each costs a store call.
const FORECAST_QUEUES: usize = 50;

pub(crate) const DAY: Duration = Duration::from_secs(86_400);

/// Time between overview readings while nobody looks, so that the charts of the past have no gaps.
const WATCH_INTERVAL: Duration = Duration::from_secs(60);

/// Longest interval, for slow stores. Below it, readings take at most 1 % of the time.
const WATCH_INTERVAL_MAX: Duration = Duration::from_secs(240);

/// How long a page waits for a check. On RabbitMQ, a check sends a message through the broker.
const PAGE_CHECK_TIMEOUT: Duration = Duration::from_millis(100);

/// How long a program waits for a check.
pub(crate) const API_CHECK_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a slow check's result is kept for pages that ask again after a second.
const CHECK_AGE: Duration = Duration::from_secs(3);

/// Completion time and findings of a check; `None` while it runs.
type CheckResult = Option<(Instant, Vec<FindingView>)>;

/// Jobs due in each of the next 24 hours.
#[derive(Debug, Clone)]
pub(crate) struct DayAhead {
    pub(crate) counts: Vec<u64>,
    /// Queues left out because they have the fewest scheduled jobs.
    pub(crate) omitted: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct App {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    ops: Ops,
    auth: Auth,
    live: Live,
    /// Whether the store answers, kept so that frequent probes do not load it.
    store_answers: Cached<bool>,
    day_ahead: Cached<Option<DayAhead>>,
    /// The latest forecasts, by window. The lock is held during a read, so that many pages cause
    /// one.
    forecasts: tokio::sync::Mutex<BTreeMap<Duration, (Instant, Arc<Forecasts>)>>,
    /// Held during an API check.
    check_turn: tokio::sync::Mutex<()>,
    /// The last page check and its start time. This mutex is never held across an await.
    check: Mutex<Option<(Instant, watch::Receiver<CheckResult>)>>,
}

impl App {
    pub(crate) fn new(ops: Ops, auth: Auth, stop: Option<watch::Receiver<bool>>) -> Self {
        let shared = Arc::new(Shared {
            live: Live::new(ops.clone(), stop),
            ops,
            auth,
            store_answers: Cached::new(Duration::from_secs(1)),
            day_ahead: Cached::new(FORECAST_AGE),
            forecasts: Default::default(),
            check_turn: Default::default(),
            check: Default::default(),
        });
        // A router built outside a runtime watches only while somebody looks.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(watch(Arc::downgrade(&shared)));
        }
        Self { shared }
    }

    pub(crate) fn ops(&self) -> &Ops {
        &self.shared.ops
    }

    pub(crate) fn auth(&self) -> &Auth {
        &self.shared.auth
    }

    pub(crate) fn live(&self) -> &Live {
        &self.shared.live
    }

    pub(crate) fn store_answers(&self) -> &Cached<bool> {
        &self.shared.store_answers
    }

    /// Runs a check for a program, one at a time; `None` on timeout. The result is not kept,
    /// because the caller may have just mended something.
    pub(crate) async fn check(&self, session: &Session) -> Option<Vec<FindingView>> {
        let check = async {
            let _turn = self.shared.check_turn.lock().await;
            session.check().await
        };
        tokio::time::timeout(API_CHECK_TIMEOUT, check).await.ok()
    }

    /// Returns the findings for a page; `None` if the check is slow. A slow check goes on, and a
    /// later call gets its result. Concurrent calls share a check.
    pub(crate) async fn check_for_page(&self, session: &Session) -> Option<Vec<FindingView>> {
        // A quick result is not kept either.
        let is_usable = |(began, check): &(Instant, watch::Receiver<CheckResult>)| {
            match &*check.borrow() {
                Some((ended, _)) => {
                    let was_slow = *ended - *began > PAGE_CHECK_TIMEOUT;
                    was_slow && ended.elapsed() < CHECK_AGE
                }
                // An error means the task is gone.
                None => check.has_changed().is_ok(),
            }
        };
        let mut check = {
            let mut current = lock(&self.shared.check);
            if !current.as_ref().is_some_and(is_usable) {
                let (sender, receiver) = watch::channel(None);
                let session = session.clone();
                tokio::spawn(async move {
                    let findings = session.check().await;
                    sender.send_replace(Some((Instant::now(), findings)));
                });
                *current = Some((Instant::now(), receiver));
            }
            current.as_ref()?.1.clone()
        };
        let ended = tokio::time::timeout(PAGE_CHECK_TIMEOUT, check.wait_for(Option::is_some));
        ended.await.ok()?.ok()?.as_ref().map(|(_, findings)| findings.clone())
    }

    /// Returns the forecast of all queues, read one at a time and at most every few seconds.
    pub(crate) async fn forecasts(
        &self,
        session: &Session,
        window: Duration,
    ) -> dq_ops::Result<Arc<Forecasts>> {
        let read = async {
            let mut kept = self.shared.forecasts.lock().await;
            // Drop expired entries: a program may ask for any number of windows.
            kept.retain(|_, (at, _)| at.elapsed() < FORECAST_AGE);
            if let Some((_, forecasts)) = kept.get(&window) {
                return Ok(Arc::clone(forecasts));
            }
            let forecasts = Arc::new(session.forecasts(window).await?);
            kept.insert(window, (Instant::now(), Arc::clone(&forecasts)));
            Ok(forecasts)
        };
        tokio::time::timeout(FORECASTS_TIMEOUT, read).await.unwrap_or_else(|_| {
            let message = format!("the forecast was not read in {FORECASTS_TIMEOUT:?}");
            Err(Error::new(ErrorKind::Unavailable, message).remedy("try again").into())
        })
    }

    /// Returns the jobs due per hour in the next 24 hours, for the queues with the most scheduled
    /// jobs; `None` if the store cannot tell, or not quickly.
    pub(crate) async fn day_ahead(
        &self,
        session: &Session,
        overview: &Overview,
    ) -> Option<DayAhead> {
        let read = async {
            let end = overview.at + DAY;
            let in_window = |queue: &&QueueSummary| {
                queue.scheduled > 0 && queue.next_due.is_some_and(|due| due < end)
            };
            let mut queues: Vec<_> = overview.queues.iter().filter(in_window).collect();
            queues.sort_by_key(|queue| Reverse(queue.scheduled));
            let omitted = queues.len().saturating_sub(FORECAST_QUEUES);
            queues.truncate(FORECAST_QUEUES);
            let mut counts = vec![0; 24];
            let forecasts = queues.iter().map(|queue| session.forecast(&queue.queue, DAY, 24));
            for forecast in join_all(forecasts).await {
                let hours = counts.iter_mut().zip(forecast.ok()?.counts);
                hours.for_each(|(sum, count)| *sum += count);
            }
            Some(DayAhead { counts, omitted })
        };
        let read = async { tokio::time::timeout(DAY_AHEAD_TIMEOUT, read).await.ok().flatten() };
        self.shared.day_ahead.get(read).await
    }
}

/// Reads the overview now and then while nobody else does, until the router is gone.
async fn watch(shared: Weak<Shared>) {
    let mut pause = Duration::ZERO;
    loop {
        tokio::time::sleep(pause).await;
        let Some(ops) = shared.upgrade().map(|shared| shared.ops.clone()) else { return };
        pause = WATCH_INTERVAL;
        if ops.last_overview().is_some_and(|at| at.elapsed() < WATCH_INTERVAL / 2) {
            continue;
        }
        let began = Instant::now();
        // A failed reading leaves a gap in the charts of the past.
        let _ = ops.session(Actor::new("watch", Role::Viewer)).overview().await;
        pause = pause.max(began.elapsed() * 100).min(WATCH_INTERVAL_MAX);
    }
}
