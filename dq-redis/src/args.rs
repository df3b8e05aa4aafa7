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

/// A partition's history limit: maximum job count, maximum age in milliseconds. A shard keeps more
/// than its share because jobs are not spread evenly; listings leave out the excess.
pub(crate) fn history_args(limit: HistoryLimit, partition: &Partition) -> (u32, u64) {
    let share = limit.max.div_ceil(partition.shards.into());
    let spread = share.saturating_add(8 * share.isqrt() + 8);
    (limit.max.min(spread), millis_arg(limit.age))
}

/// A duration in milliseconds, from 1 to 2⁵¹: Lua's numbers then stay exact after adding a time.
pub(crate) fn millis_arg(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).clamp(1, i64::MAX.unsigned_abs() / 4096)
}

/// Adds jobs as the layout's `schedule` script expects them: flags about all jobs, then property by
/// property, as the script passes them to Redis. `now` is the estimated server time.
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
    call.arg(flags).arg(jobs.len()).arg(now).arg(history.0).arg(history.1);
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
    let with_keys =
        || (1_usize..).zip(jobs).filter_map(|(number, job)| Some((number, job.key.as_ref()?)));
    for (_, key) in with_keys() {
        call.arg(key.as_str());
    }
    for (number, _) in with_keys() {
        call.arg(number);
    }
}

fn has_duplicates(jobs: &[&NewJob]) -> bool {
    let (mut handles, mut keys) = (HashSet::new(), HashSet::new());
    jobs.len() > 1
        && jobs.iter().any(|job| {
            let repeated_key = job.key.as_ref().is_some_and(|key| !keys.insert(key));
            !handles.insert(handle::handle(job.id)) || repeated_key
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
