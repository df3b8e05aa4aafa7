//! Random sequences. The number before each `=>` is a weight. Times are short and numbers small, so
//! that calls conflict and leases expire.

use dq_core::OnConflict;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::step::{DueTime, Ending, FlowSpec, GROUPS, JobChoice, JobSpec, KEYS, QUEUES, Step};

/// Generates sequences of up to `max_steps` steps.
pub fn steps(max_steps: usize) -> impl Strategy<Value = Vec<Step>> {
    vec(step(), 1..=max_steps)
}

fn step() -> impl Strategy<Value = Step> {
    let queue = 0..QUEUES;
    let lease = prop_oneof![3 => 0..40_u16, 1 => 1_000..2_000_u16];
    prop_oneof![
        8 => vec(job_spec(), 1..5).prop_map(Step::Schedule),
        3 => (any::<usize>(), option::of(0..QUEUES))
            .prop_map(|(number, queue)| Step::Repeat(number, queue)),
        8 => (vec((0..QUEUES, 0..4_usize), 1..4), 0..6_usize, lease.clone())
            .prop_map(|(wants, limit, lease)| Step::Claim { wants, limit, lease }),
        6 => vec((any::<usize>(), ending()), 1..4).prop_map(Step::Settle),
        2 => (vec(any::<usize>(), 1..3), lease).prop_map(|(leases, lease)| Step::Renew(leases, lease)),
        2 => vec(job_choice(), 1..4).prop_map(Step::Cancel),
        3 => vec((job_choice(), due_time()), 1..3).prop_map(Step::Reschedule),
        3 => (queue.clone(), option::of(any::<usize>()), due_time())
            .prop_map(|(queue, job, due)| Step::Replay(queue, job, due)),
        2 => (queue.clone(), option::of(any::<usize>()))
            .prop_map(|(queue, job)| Step::Remove(queue, job)),
        2 => (queue.clone(), any::<bool>()).prop_map(|(queue, paused)| Step::Pause(queue, paused)),
        2 => (queue.clone(), any::<bool>(), flow())
            .prop_map(|(queue, overrides, flow)| Step::Flow(queue, overrides, flow)),
        1 => queue.clone().prop_map(Step::Unlimit),
        1 => queue.prop_map(Step::Purge),
        6 => (0..60_u16).prop_map(Step::Wait),
        1 => (1..60_u16).prop_map(Step::SetBack),
    ]
}

fn job_spec() -> impl Strategy<Value = JobSpec> {
    let policy = prop_oneof![
        Just(OnConflict::Keep),
        Just(OnConflict::Replace),
        Just(OnConflict::Earliest),
        Just(OnConflict::Latest),
    ];
    let remember = prop_oneof![3 => Just(0), 1 => 1..200_u16];
    let keyed = (0..QUEUES, option::of(0..KEYS), policy, any::<bool>());
    let group = option::of(0..GROUPS);
    (keyed, group, remember, due_time()).prop_map(
        |((queue, key, on_conflict, detach), group, remember, due)| JobSpec {
            queue,
            key,
            group,
            on_conflict,
            detach,
            remember,
            due,
        },
    )
}

fn flow() -> impl Strategy<Value = FlowSpec> {
    let rate = (1..4_u32, 1..24_u16, 1..4_u32);
    (option::of(1..4_u32), option::of(1..3_u32), option::of(rate)).prop_map(
        |(max_running, group_max_running, rate)| FlowSpec { max_running, group_max_running, rate },
    )
}

fn due_time() -> impl Strategy<Value = DueTime> {
    prop_oneof![
        2 => (0..500_u16).prop_map(DueTime::At),
        2 => (0..50_u16).prop_map(DueTime::After),
        1 => Just(DueTime::After(0)),
    ]
}

fn job_choice() -> impl Strategy<Value = JobChoice> {
    prop_oneof![
        3 => any::<usize>().prop_map(JobChoice::Number),
        1 => (any::<usize>(), 0..QUEUES).prop_map(|(number, queue)| JobChoice::InQueue(number, queue)),
        3 => (0..QUEUES, 0..KEYS).prop_map(|(queue, key)| JobChoice::Key(queue, key)),
    ]
}

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![
        3 => Just(Ending::Done),
        1 => Just(Ending::Skip),
        3 => due_time().prop_map(Ending::Retry),
        2 => due_time().prop_map(Ending::Snooze),
        1 => due_time().prop_map(Ending::Throttle),
        2 => (due_time(), any::<u8>()).prop_map(|(due, payload)| Ending::Again(due, payload)),
        3 => any::<bool>().prop_map(Ending::Dead),
        2 => any::<bool>().prop_map(Ending::Release),
    ]
}
