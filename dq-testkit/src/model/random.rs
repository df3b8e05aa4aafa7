//! Random sequences of calls, with what is interesting made likely.

use dq_core::OnConflict;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::op::{Handle, Moment, New, Op, Which};

/// Sequences of up to `longest` calls.
pub fn ops(longest: usize) -> impl Strategy<Value = Vec<Op>> {
    vec(op(), 1..=longest)
}

fn op() -> impl Strategy<Value = Op> {
    let queue = 0..3_u8;
    let lease = prop_oneof![3 => 0..40_u16, 1 => 1_000..2_000_u16];
    prop_oneof![
        8 => vec(new(), 1..5).prop_map(Op::Schedule),
        1 => (any::<usize>(), option::of(0..3_u8))
            .prop_map(|(number, astray)| Op::Repeat(number, astray)),
        8 => (vec((0..3_u8, 0..4_usize), 1..4), 0..6_usize, lease.clone())
            .prop_map(|(wants, limit, lease)| Op::Claim { wants, limit, lease }),
        6 => vec((any::<usize>(), handle()), 1..4).prop_map(Op::Settle),
        2 => (vec(any::<usize>(), 1..3), lease).prop_map(|(leases, lease)| Op::Renew(leases, lease)),
        2 => vec(which(), 1..3).prop_map(Op::Cancel),
        3 => (which(), moment()).prop_map(|(which, due)| Op::Move(which, due)),
        1 => (queue.clone(), option::of(any::<usize>()), moment())
            .prop_map(|(queue, job, due)| Op::Replay(queue, job, due)),
        1 => (queue.clone(), option::of(any::<usize>()))
            .prop_map(|(queue, job)| Op::Remove(queue, job)),
        1 => (queue.clone(), any::<bool>()).prop_map(|(queue, paused)| Op::Pause(queue, paused)),
        1 => queue.prop_map(Op::Purge),
        6 => (0..60_u16).prop_map(Op::Wait),
        1 => (1..60_u16).prop_map(Op::SetBack),
    ]
}

fn new() -> impl Strategy<Value = New> {
    let policy = prop_oneof![
        Just(OnConflict::Keep),
        Just(OnConflict::Replace),
        Just(OnConflict::Earliest),
        Just(OnConflict::Latest),
    ];
    (0..3_u8, option::of(0..3_u8), policy, moment())
        .prop_map(|(queue, key, on_conflict, due)| New { queue, key, on_conflict, due })
}

fn moment() -> impl Strategy<Value = Moment> {
    prop_oneof![
        2 => (0..500_u16).prop_map(Moment::At),
        2 => (0..50_u16).prop_map(Moment::After),
        1 => Just(Moment::After(0)),
    ]
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![
        3 => any::<usize>().prop_map(Which::Number),
        1 => (any::<usize>(), 0..3_u8).prop_map(|(number, queue)| Which::Astray(number, queue)),
        3 => (0..3_u8, 0..3_u8).prop_map(|(queue, key)| Which::Key(queue, key)),
    ]
}

fn handle() -> impl Strategy<Value = Handle> {
    prop_oneof![
        3 => Just(Handle::Done),
        1 => Just(Handle::Skip),
        3 => moment().prop_map(Handle::Retry),
        2 => moment().prop_map(Handle::Snooze),
        2 => any::<bool>().prop_map(Handle::Dead),
        2 => any::<bool>().prop_map(Handle::Release),
    ]
}
