//! All states of a small world with limits: calls in every order lead to no state that breaks a
//! rule, and the search finds machines that do.
//!
//! Leases end by calls, so no time passes. Hints and the claimers' line are not part of a state.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::time::Duration;

use super::{JobPlacement, JobSnapshot, Machine, MachineSnapshot};
use crate::backend::{ClaimParams, Lease, Operation, Reschedule, Settlement, Verdict, Want};
use crate::model::{Due, Flow, HistoryLimits, JobId, JobRef, NewJob, QueueName, Timestamp};

const NOW: Timestamp = Timestamp::from_millis(1_000);
const DUE: Timestamp = Timestamp::from_millis(800);
const LATER: Timestamp = Timestamp::from_millis(900);
const FUTURE: Timestamp = Timestamp::from_millis(1_100);
/// The groups of a world's jobs.
type World = [&'static str; 3];
const WORLDS: [World; 2] = [["a", "a", "a"], ["a", "a", "b"]];
/// A running job with this number is not real, but its group counts it.
const LEAK: u8 = 9;

/// Limits that one call sets, of the queue and of each group. The first are there from the start.
const LIMITS: [(Option<u32>, Option<u32>); 2] = [(Some(2), Some(1)), (None, Some(2))];

/// The machine, or one with a defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    Correct,
    ExpiryUnparksNone,
    SettlementUnparksNone,
    CancelUnparksNone,
    CancelOfParkedLeaksSlot,
    LimitChangeUnparksNone,
    LimitPerShard,
}

#[derive(Debug, Clone, Copy)]
enum Call {
    Schedule(u8, &'static str),
    /// At most this many jobs.
    Claim(usize),
    Done(u8),
    Retry(u8),
    Release(u8),
    Expire(u8),
    Cancel(u8),
    Reschedule(u8, Timestamp),
    Limit(usize),
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn id(job: u8) -> JobId {
    JobId::from_bytes([job; 16])
}

fn number(job: &JobSnapshot) -> u8 {
    job.job.id.to_bytes()[0]
}

fn is_leased(job: &JobSnapshot) -> bool {
    matches!(job.placement, JobPlacement::Leased { .. })
}

fn group(job: &JobSnapshot) -> &str {
    job.job.group().unwrap()
}

/// The order of claims.
fn order(job: &JobSnapshot) -> (Timestamp, u64) {
    (job.job.due, job.seq)
}

fn flow(state: &MachineSnapshot) -> Flow {
    state.gates[0].1.flow()
}

fn calls(world: World, state: &MachineSnapshot) -> Vec<Call> {
    let mut calls: Vec<Call> = (0..LIMITS.len()).map(Call::Limit).collect();
    calls.extend([1, 2].map(Call::Claim));
    for (job, group) in (0..).zip(world) {
        match state.jobs.iter().find(|it| number(it) == job) {
            None => calls.push(Call::Schedule(job, group)),
            Some(it) if is_leased(it) => {
                calls.extend(
                    [Call::Done, Call::Retry, Call::Release, Call::Expire].map(|it| it(job)),
                );
            }
            Some(_) => {
                calls.push(Call::Cancel(job));
                calls.extend([LATER, FUTURE].map(|due| Call::Reschedule(job, due)));
            }
        }
    }
    calls
}

fn on_machine(state: MachineSnapshot, call: Call) -> MachineSnapshot {
    let lease = |job: u8| {
        let token = state.jobs.iter().find_map(|it| match it.placement {
            JobPlacement::Leased { token, .. } if number(it) == job => Some(token),
            _ => None,
        });
        Lease { queue: queue(), job: id(job), token: token.expect("the job is leased") }
    };
    let settlement = |job, verdict| Settlement::new(lease(job), verdict);
    let (job_ref, queue) = (|job| JobRef::new(queue(), id(job)), queue());
    let mut machine = Machine::restore(state.clone(), HistoryLimits::default());
    machine = machine.with_explicit_lease_ends();
    match call {
        Call::Schedule(job, group) => {
            let new = NewJob::new(id(job), queue, Due::At(DUE), Default::default());
            let _ = machine.schedule(new.group(group), (), NOW);
        }
        Call::Claim(max) => {
            let want = [Want::new(queue, max, Duration::from_secs(1))];
            machine.claim(ClaimParams::new(&want, max, "worker"), NOW);
        }
        Call::Done(job) => drop(machine.settle(&settlement(job, Verdict::Done), NOW)),
        Call::Retry(job) => {
            let retry = Verdict::retry(Due::At(LATER), "failed");
            machine.settle(&settlement(job, retry), NOW);
        }
        Call::Release(job) => {
            machine.settle(&settlement(job, Verdict::Release { started: false }), NOW);
        }
        Call::Expire(job) => drop(machine.end_lease(&lease(job))),
        Call::Cancel(job) => drop(machine.cancel(&job_ref(job), NOW)),
        Call::Reschedule(job, due) => {
            let _ = machine.reschedule(&Reschedule { job: job_ref(job), due: Due::At(due) }, NOW);
        }
        Call::Limit(number) => {
            let (max_running, group_max_running) = LIMITS[number];
            let flow = Flow { max_running, group_max_running, ..Flow::UNLIMITED };
            machine.operate(Operation::DeclareFlow { queue: &queue, flow }, NOW);
        }
    }
    let after = machine.snapshot();
    check_groups(&machine, &after);
    after
}

/// Checks the counts that the machine keeps: a snapshot does not have them, so the next call begins
/// with new ones.
fn check_groups(machine: &Machine, state: &MachineSnapshot) {
    let groups = machine.table.queues[0].groups.as_ref();
    for name in ["a", "b"] {
        let of_group = || state.jobs.iter().filter(|job| group(job) == name);
        let running = of_group().filter(|job| is_leased(job)).count();
        let has_line = of_group().any(|job| job.parked);
        let kept = groups.map_or((0, false), |it| (it.running(name), it.has_line(name)));
        assert_eq!(kept, (running, has_line), "group {name} in {state:?}");
    }
}

/// Makes a call, with the variant's defect.
fn step(variant: Variant, before: &MachineSnapshot, call: Call) -> MachineSnapshot {
    let is_parked = |job: u8| before.jobs.iter().any(|it| number(it) == job && it.parked);
    let unparks_none = match call {
        Call::Expire(_) => variant == Variant::ExpiryUnparksNone,
        Call::Done(_) => variant == Variant::SettlementUnparksNone,
        Call::Cancel(job) => variant == Variant::CancelUnparksNone && !is_parked(job),
        Call::Limit(_) => variant == Variant::LimitChangeUnparksNone,
        _ => false,
    };
    match call {
        Call::Claim(_) if variant == Variant::LimitPerShard => {
            let mut after = before.clone();
            for shard in 0..2 {
                let is_of_other = |job: &mut JobSnapshot| number(job) % 2 != shard;
                let others: Vec<_> = after.jobs.extract_if(.., is_of_other).collect();
                after = on_machine(after, call);
                after.jobs.extend(others);
            }
            after
        }
        Call::Cancel(job) if variant == Variant::CancelOfParkedLeaksSlot && is_parked(job) => {
            let mut after = on_machine(before.clone(), call);
            let mut leak = before.jobs.iter().find(|it| is_leased(it)).cloned();
            leak.iter_mut().for_each(|it| it.job.id = id(LEAK));
            after.jobs.extend(leak);
            after
        }
        _ => {
            let mut after = on_machine(before.clone(), call);
            for job in after.jobs.iter_mut().filter(|job| unparks_none && is_parked(number(job))) {
                job.parked = true;
            }
            after
        }
    }
}

/// The jobs that a search through all would start.
fn search(state: &MachineSnapshot, max: usize) -> Vec<u8> {
    let (mut running, mut ready): (Vec<_>, Vec<_>) =
        state.jobs.iter().filter(|job| number(job) != LEAK).partition(|job| is_leased(job));
    ready.retain(|job| job.job.due <= NOW);
    ready.sort_by_key(|job| order(job));
    let Flow { max_running, group_max_running, .. } = flow(state);
    let mut found = Vec::new();
    for job in ready {
        let of_group = running.iter().filter(|it| group(it) == group(job)).count();
        let is_full = |limit: Option<u32>, count| limit.is_some_and(|max| count >= max as usize);
        if found.len() < max
            && !is_full(max_running, running.len())
            && !is_full(group_max_running, of_group)
        {
            running.push(job);
            found.push(number(job));
        }
    }
    found.sort_unstable();
    found
}

/// Checks what must hold after a call.
fn check(
    before: &MachineSnapshot,
    call: Call,
    after: &MachineSnapshot,
) -> Result<(), &'static str> {
    let leased = |state: &MachineSnapshot| -> HashSet<u8> {
        state
            .jobs
            .iter()
            .filter(|job| is_leased(job))
            .map(number)
            .filter(|it| *it != LEAK)
            .collect()
    };
    let mut started: Vec<u8> = leased(after).difference(&leased(before)).copied().collect();
    started.sort_unstable();
    let expected = match call {
        Call::Claim(max) => search(before, max),
        _ => Vec::new(),
    };
    if started.len() > expected.len() {
        return Err("more jobs start than the limits allow");
    }
    if started != expected {
        return Err("a claim misses a job that may start");
    }
    for parked in after.jobs.iter().filter(|job| job.parked) {
        let of_group = |job: &&JobSnapshot| group(job) == group(parked);
        let running = after.jobs.iter().filter(of_group).filter(|job| is_leased(job)).count();
        let indexed = after
            .jobs
            .iter()
            .filter(of_group)
            .filter(|job| !job.parked && !is_leased(job) && order(job) < order(parked));
        let limit = flow(after).group_max_running.map_or(usize::MAX, |max| max as usize);
        if indexed.count() < limit.saturating_sub(running) {
            return Err("a job is parked while it may start");
        }
    }
    Ok(())
}

fn check_counts(state: &MachineSnapshot) -> Result<(), &'static str> {
    let mut machine: Machine = Machine::restore(state.clone(), HistoryLimits::default());
    machine = machine.with_explicit_lease_ends();
    let stats = machine.stats(&[queue()], NOW).remove(0);
    let waiting = state.jobs.iter().filter(|job| !is_leased(job)).count();
    if stats.scheduled + stats.ready != waiting as u64 {
        return Err("waiting jobs are miscounted");
    }
    let has_leak = state.jobs.iter().any(|job| number(job) == LEAK);
    if !has_leak && stats.adds_up() != Some(true) {
        return Err("the counts do not add up");
    }
    Ok(())
}

/// What decides which calls follow: not tokens, counters or the absolute sequence numbers.
fn essence(state: &MachineSnapshot) -> impl Eq + std::hash::Hash + use<> {
    let mut by_seq: Vec<_> = state.jobs.iter().collect();
    by_seq.sort_unstable_by_key(|job| job.seq);
    let job = |job: &&JobSnapshot| (number(job), job.job.due, is_leased(job), job.parked);
    let flow = flow(state);
    (by_seq.iter().map(job).collect::<Vec<_>>(), flow.max_running, flow.group_max_running)
}

/// A broken rule, and the shortest way to it.
struct Broken {
    rule: &'static str,
    calls: Vec<Call>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} after {:?}", self.rule, self.calls)
    }
}

/// Visits every state, breadth first. Returns how many there are.
fn explore(variant: Variant, world: World) -> Result<usize, Broken> {
    let start = on_machine(MachineSnapshot::default(), Call::Limit(0));
    let mut seen = HashSet::from([essence(&start)]);
    let mut origins: Vec<Option<(usize, Call)>> = vec![None];
    let mut queue = VecDeque::from([(0, start)]);
    while let Some((origin, state)) = queue.pop_front() {
        for call in calls(world, &state) {
            let after = step(variant, &state, call);
            let is_new = seen.insert(essence(&after));
            let mut checked = check(&state, call, &after);
            // Equal states have equal counts, except for the totals.
            if is_new {
                checked = checked.and_then(|()| check_counts(&after));
            }
            if let Err(rule) = checked {
                let mut calls = vec![call];
                let mut from = origin;
                while let Some((before, call)) = origins[from] {
                    calls.insert(0, call);
                    from = before;
                }
                return Err(Broken { rule, calls });
            }
            if is_new {
                queue.push_back((origins.len(), after));
                origins.push(Some((origin, call)));
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn no_order_of_calls_breaks_a_limit_or_parks_a_job_for_ever() {
    for world in WORLDS {
        let states = explore(Variant::Correct, world).unwrap_or_else(|broken| panic!("{broken}"));
        println!("{world:?}: {states} states");
        assert!(states > 1_000, "{states} states");
    }
}

#[test]
fn the_search_finds_each_defect() {
    for (variant, rule) in [
        (Variant::ExpiryUnparksNone, "a job is parked while it may start"),
        (Variant::SettlementUnparksNone, "a job is parked while it may start"),
        (Variant::CancelUnparksNone, "a job is parked while it may start"),
        (Variant::LimitChangeUnparksNone, "a job is parked while it may start"),
        (Variant::CancelOfParkedLeaksSlot, "a claim misses a job that may start"),
        (Variant::LimitPerShard, "more jobs start than the limits allow"),
    ] {
        let mut found = WORLDS.iter().filter_map(|world| explore(variant, *world).err());
        let broken = found.next().unwrap_or_else(|| panic!("{variant:?} is not found"));
        println!("{variant:?}: {broken}");
        assert_eq!(broken.rule, rule, "{variant:?}: {broken}");
    }
}
