//! Script arguments: times, job references, and the jobs for `schedule`.

use std::collections::HashSet;
use std::time::Duration;

use dq_core::{Due, HistoryLimit, NewJob, Target, Timestamp};

use crate::handle;
use crate::key_layout::KeyLayout;
use crate::keys::Partition;
use crate::record;
use crate::script::Call;

/// A due time in milliseconds, or `+` and a delay. Delays are rounded up, so that no job is early.
pub(crate) fn due_arg(due: Due) -> String {
    match due {
        Due::At(at) => at.as_millis().to_string(),
        // Resolved at 0, the due time is the delay.
        after @ Due::After(_) => format!("+{}", after.resolve(Timestamp::EPOCH).as_millis()),
    }
}

/// `i` with handle and tail, or `k` with the key.
pub(crate) fn target_arg(target: &Target) -> Vec<u8> {
    match target {
        Target::Id(id) => [&b"i"[..], &handle::handle_and_tail(*id)].concat(),
        Target::Key(key) => [b"k", key.as_str().as_bytes()].concat(),
    }
}

/// Maximum job count and maximum age in milliseconds of a partition's history. A shard keeps more
/// than its share because jobs are not spread evenly; listings leave out the excess.
pub(crate) fn history_args(limit: HistoryLimit, partition: &Partition) -> (u32, u64) {
    let share = limit.max.div_ceil(partition.shards.into());
    let with_excess = share.saturating_add(8 * share.isqrt() + 8);
    (limit.max.min(with_excess), millis_arg(limit.age))
}

/// A duration in milliseconds, from 1 to 2⁵¹: Lua's numbers then stay exact after adding a time.
pub(crate) fn millis_arg(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 51)
}

/// Adds jobs as the layout's `schedule` script expects them: flags, then property by property.
pub(crate) fn add_jobs(
    call: &mut Call<'_>,
    layout: &dyn KeyLayout,
    jobs: &[&NewJob],
    now: i64,
    history: (u32, u64),
) {
    let encoded = layout.encode(jobs, now);
    let mut flags = String::new();
    let mut add_flag = |letter, is_set: bool| flags.extend(is_set.then_some(letter));
    add_flag('=', encoded.has_duplicates || has_duplicates(jobs));
    add_flag('+', jobs.iter().any(|job| matches!(job.due, Due::After(_))));
    add_flag('L', encoded.has_large_record);
    call.arg(flags).arg(jobs.len()).arg(now).arg(history);
    for job in jobs {
        call.arg(&handle::handle(job.id)[..]);
    }
    for value in encoded.columns.into_iter().flatten() {
        call.arg(&value[..]);
    }
    for job in jobs {
        call.arg(due_arg(job.due));
    }
    for job in jobs.iter().filter(|job| !job.remember.is_zero()) {
        call.arg(millis_arg(job.remember).min(record::MAX_REMEMBER));
    }
    let keys = jobs.iter().filter_map(|job| job.key.as_ref());
    for key in keys {
        call.arg(key.as_str());
    }
    let numbers_with_key = (1_usize..).zip(jobs).filter(|(_, job)| job.key.is_some());
    for (number, _) in numbers_with_key {
        call.arg(number);
    }
}

fn has_duplicates(jobs: &[&NewJob]) -> bool {
    let (mut handles, mut keys) = (HashSet::new(), HashSet::new());
    jobs.iter().any(|job| {
        let is_key_repeated = job.key.as_ref().is_some_and(|key| !keys.insert(key));
        let is_handle_repeated = !handles.insert(handle::handle(job.id));
        is_key_repeated || is_handle_repeated
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_round_up() {
        assert_eq!(due_arg(Due::After(Duration::from_micros(1))), "+1");
        assert_eq!(due_arg(Due::After(Duration::from_millis(5))), "+5");
        assert_eq!(due_arg(Due::At(Timestamp::from_millis(-3))), "-3");
    }
}
