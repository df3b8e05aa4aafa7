//! Counts future occurrences of schedules.

use std::collections::BTreeMap;
use std::iter;
use std::time::Duration;

use super::schedule_job::is_supported;
use super::view::ScheduleView;
use crate::backend::Backend;
use crate::client::Dq;
use crate::error::{Error, Result};
use crate::model::{QueueName, Timestamp};

const UNTIL_YIELD: u64 = 1_000;

/// Maximum cron occurrences in one count, which computes each of them.
const MAX_COMPUTED: u64 = 1_000_000;

impl Dq {
    /// Counts the occurrences due between successive edges, by job queue.
    ///
    /// Missed occurrences are due at the first edge, which is now. Paused, stopped and unreadable
    /// schedules count as empty.
    pub(crate) async fn count_occurrences(
        &self,
        edges: &[Timestamp],
    ) -> Result<BTreeMap<QueueName, Vec<u64>>> {
        let mut counts = BTreeMap::new();
        let [now, _, ..] = edges else { return Ok(counts) };
        if !is_supported(self.backend().capabilities()) {
            return Ok(counts);
        }
        let mut computed = 0;
        for (name, view) in self.stored_schedules().await? {
            let view = match view {
                Ok(view) => view,
                Err(error) => {
                    tracing::warn!(schedule = name, %error, "the forecast leaves a schedule out");
                    continue;
                }
            };
            if view.paused || view.stopped {
                continue;
            }
            let none = || vec![0; edges.len() - 1];
            let of_queue = counts.entry(view.spec.queue.clone()).or_insert_with(none);
            let (missed, cursor) = view.occurrences_at(*now);
            of_queue[0] += missed.len() as u64;
            let offset = view.spec.offset(&view.name);
            if let Some(every) = view.spec.every() {
                add_multiples(of_queue, every, cursor, offset, edges);
                tokio::task::yield_now().await;
            } else {
                add_computed(of_queue, &view, cursor, edges, &mut computed).await?;
            }
        }
        Ok(counts)
    }
}

fn add_multiples(
    counts: &mut [u64],
    every: Duration,
    cursor: Timestamp,
    offset: Duration,
    edges: &[Timestamp],
) {
    let every = i64::try_from(every.as_millis()).unwrap_or(i64::MAX).max(1);
    let until = |edge: Timestamp| {
        let last = (edge - offset).as_millis().saturating_sub(1).max(cursor.as_millis());
        last.div_euclid(every)
    };
    let mut before = cursor.as_millis().div_euclid(every);
    for (count, end) in counts.iter_mut().zip(&edges[1..]) {
        let multiples = until(*end);
        *count += multiples.abs_diff(before);
        before = multiples;
    }
}

/// Counts a cron expression's occurrences; `computed` is their number over all schedules.
async fn add_computed(
    counts: &mut [u64],
    view: &ScheduleView,
    cursor: Timestamp,
    edges: &[Timestamp],
    computed: &mut u64,
) -> Result<()> {
    let offset = view.spec.offset(&view.name);
    let times = iter::successors(view.spec.next_after(cursor), |time| view.spec.next_after(*time));
    let due_times = times.map(|time| time.saturating_add(offset));
    let end = edges[edges.len() - 1];
    for due in due_times.take_while(|due| *due < end) {
        if *computed == MAX_COMPUTED {
            let message =
                format!("the schedules have more than {MAX_COMPUTED} occurrences in the window");
            return Err(Error::invalid(message)
                .operation("forecast")
                .remedy("ask for a shorter window"));
        }
        *computed += 1;
        counts[edges.partition_point(|edge| *edge <= due).max(1) - 1] += 1;
        if computed.is_multiple_of(UNTIL_YIELD) {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::clock::VirtualClock;
    use crate::error::ErrorKind;
    use crate::memory::MemoryBackend;
    use crate::model::DurationExt;
    use crate::schedules::schedule_job::schedule_job;

    /// 2026-03-01T00:00Z.
    const START: Timestamp = Timestamp::from_millis(1_772_323_200_000);

    async fn connect() -> Dq {
        let clock = Arc::new(VirtualClock::new(START));
        let store = Arc::new(MemoryBackend::new(clock.clone()));
        Dq::builder().backend(store).clock(clock).connect().await.unwrap()
    }

    #[test]
    fn multiples_are_those_of_a_walk() {
        let edges = [1, 60_000, 60_001, 120_000, 500_000].map(|millis| START + millis.millis());
        for (every, cursor, offset) in
            [(1, 0, 0), (7, 0, 3), (1_000, 59_000, 999), (90_000, 0, 45_000), (60_000, 400_000, 1)]
        {
            let (cursor, offset) = (START + cursor.millis(), offset.millis());
            let mut counts = [0; 4];
            add_multiples(&mut counts, every.millis(), cursor, offset, &edges);
            let mut walked = [0; 4];
            let interval = dq_cron::Times::from(dq_cron::Interval::new(every.millis()).unwrap());
            let next = |time: &i64| interval.next_after(*time);
            for time in iter::successors(next(&cursor.as_millis()), next) {
                let due = Timestamp::from_millis(time) + offset;
                if due >= edges[4] {
                    break;
                }
                walked[edges.partition_point(|edge| *edge <= due).max(1) - 1] += 1;
            }
            assert_eq!(counts, walked, "every {every} ms");
        }
    }

    #[tokio::test]
    async fn cron_expressions_with_too_many_occurrences_are_refused() {
        let dq = connect().await;
        for name in ["a", "b"] {
            let schedule = dq.recurring_in("A", name).cron("* * * * * *", "UTC");
            assert!(schedule.upsert().await.unwrap());
        }
        let edges = [START, START + 1.hours(), START + 7.days()];
        let hour = dq.count_occurrences(&edges[..2]).await.unwrap();
        assert_eq!(hour.into_values().collect::<Vec<_>>(), [[2 * 3_599]]);
        let error = dq.count_occurrences(&edges).await.unwrap_err();
        assert!(error.to_string().contains("more than 1000000 occurrences"), "{error}");
    }

    #[tokio::test]
    async fn a_schedule_that_cannot_be_read_is_left_out() {
        let dq = connect().await;
        assert!(dq.recurring_in("A", "hourly").every(1.hours()).upsert().await.unwrap());
        for (name, payload) in [("damaged", "?"), ("later", r#"{"format": 1000}"#)] {
            let payload = Bytes::from_static(payload.as_bytes());
            let job = schedule_job(dq.new_id(), name, START + 1.hours(), payload).unwrap();
            assert!(dq.shared().stores.schedule_internal(job).await.unwrap().is_stored());
        }
        let forecasts = dq.forecast_all(1.days()).await.unwrap();
        let due: u64 = forecasts[0].minutes.iter().map(|minute| minute.due).sum();
        assert_eq!((forecasts.len(), due), (1, 23));
        assert_eq!(dq.schedules().await.unwrap().len(), 1);
        let unreadable = dq.unreadable_schedules().await.unwrap();
        let kinds: Vec<_> = unreadable.iter().map(|(name, e)| (&**name, e.kind())).collect();
        assert_eq!(kinds, [("damaged", ErrorKind::Codec), ("later", ErrorKind::Incompatible)]);
    }
}
