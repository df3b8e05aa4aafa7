//! Slot tests: reservations, jobs in line, several claim loops.

use super::*;
use crate::clock::VirtualClock;
use crate::entropy::Entropy;
use crate::model::Priority;

/// Slots for application queues; the internal queue has the next index.
fn slots(total: usize, queues: &[usize], internal: Option<usize>, claimers: usize) -> Arc<Slots> {
    let application = |slots: &usize| QueueSlots::application(*slots, Priority::Normal, 0);
    let queues = queues.iter().map(application).chain(internal.map(QueueSlots::internal));
    slots_of(total, queues.collect(), claimers)
}

fn slots_of(total: usize, queues: Vec<QueueSlots>, claimers: usize) -> Arc<Slots> {
    let clock = Arc::new(VirtualClock::default());
    clock.advance(Duration::from_secs(1));
    Arc::new(Slots::new(total, queues, claimers, clock, Observers::default()))
}

fn reserve(slots: &Slots, claim_loop: usize) -> Reservation {
    slots.reserve(claim_loop, false, Scope::All)
}

fn shares(reservation: &Reservation) -> Vec<(usize, usize)> {
    reservation.queues.iter().map(|share| (share.queue, share.slots)).collect()
}

fn fill(slots: &Arc<Slots>, reservation: &Reservation, jobs: impl Fn(usize) -> usize) {
    let of_queue = |share: &Share| vec![share.queue; jobs(share.queue)];
    let jobs: Vec<_> = reservation.queues.iter().flat_map(of_queue).collect();
    for place in slots.fill(reservation, jobs) {
        let Place::Slot(slot) = place else { panic!("no slot") };
        std::mem::forget(slot);
    }
}

fn free(slots: &Arc<Slots>, queue: usize) {
    slots.free(queue, Some(Duration::from_secs(1)));
}

#[tokio::test]
async fn several_claim_loops_share_slots_and_wake_each_other() {
    let slots = slots(100, &[2], None, 2);
    let slow = reserve(&slots, 0);
    assert_eq!((slow.queues[0].slots, slow.limit), (1, 1));
    let other = reserve(&slots, 1);
    assert_eq!(shares(&other), [(0, 1)]);
    let blocked = reserve(&slots, 0);
    assert!(blocked.saturated && blocked.queues.is_empty());
    let notified =
        async || tokio::time::timeout(std::time::Duration::ZERO, slots.freed(0)).await.is_ok();
    fill(&slots, &blocked, |_| 0);
    assert!(!notified().await, "a loop does not notify itself");
    fill(&slots, &other, |_| 0);
    assert!(notified().await, "a blocked loop is notified");
    fill(&slots, &slow, |_| 0);
    assert!(!notified().await, "a loop that is not blocked is not notified");
}

#[test]
fn a_scarce_total_rotates_over_queues_and_no_slot_leaks() {
    let slots = slots(3, &[2, 2, 2], None, 1);
    let first = reserve(&slots, 0);
    assert_eq!(shares(&first), [(0, 2), (1, 2), (2, 2)]);
    assert_eq!(first.limit, 3);
    assert!(reserve(&slots, 0).queues.is_empty(), "the total is used up");
    fill(&slots, &first, |queue| usize::from(queue == 0));
    let second = reserve(&slots, 0);
    assert_eq!(second.queues[0].queue, 1, "another queue comes first");
    assert_eq!(second.limit, 2);
    assert_eq!(slots.used(), (1, vec![1, 0, 0]), "reserved slots are not used");
    assert_eq!([0, 1].map(|queue| slots.unused(queue)), [1, 2]);
    fill(&slots, &second, |_| 0);
    free(&slots, 0);
    let state = slots.lock();
    assert_eq!((state.total.free, state.total.reserved), (3, 0));
    let counts = state.queues.iter().map(|queue| queue.count);
    assert!(counts.clone().all(|count| (count.free, count.reserved) == (2, 0)));
}

#[test]
fn internal_queues_have_slots_outside_the_total() {
    let slots = slots(3, &[2], Some(5), 1);
    let all = reserve(&slots, 0);
    assert_eq!((all.scope, all.limit), (Scope::All, 7));
    assert_eq!(shares(&all), [(1, 5), (0, 2)]);
    fill(&slots, &all, |queue| [2, 5][queue]);
    assert_eq!(slots.used(), (2, vec![2, 5]), "the internal jobs are not of the total");
    let full = slots.reserve(0, true, Scope::All);
    assert!(full.own_full && full.saturated && full.queues.is_empty());

    // Otherwise an application job's due time would count as internal, and the claim loop would not
    // sleep while the slots are full.
    let without_internal = reserve(&self::slots(1, &[1], None, 1), 0);
    assert!(without_internal.own_full && !without_internal.saturated);
}

#[test]
fn a_scarce_total_makes_claims_of_their_own_for_internal_queues() {
    let slots = slots(3, &[2, 2], Some(5), 1);
    let application = reserve(&slots, 0);
    assert_eq!((application.scope, application.limit), (Scope::Shared, 3));
    fill(&slots, &application, |queue| [2, 1, 0][queue]);
    assert_eq!(reserve(&slots, 0).limit, 0, "the total is used up");
    let internal = slots.reserve(0, true, Scope::All);
    assert_eq!((internal.scope, internal.limit), (Scope::Own, 5));
    assert_eq!(shares(&internal), [(2, 5)]);
}

fn run_shortly(places: Vec<Place>) {
    for place in places {
        let Place::Slot(mut slot) = place else { panic!("no slot") };
        slot.begin_run();
    }
}

fn short_jobs(total: usize, slots: usize, claimers: usize) -> Arc<Slots> {
    let slots = self::slots(total, &[slots], None, claimers);
    let first = reserve(&slots, 0);
    assert_eq!(first.queues[0].ahead, 0, "no job has run yet");
    run_shortly(slots.fill(&first, [0]));
    slots
}

fn in_line(places: &mut Vec<Place>) -> oneshot::Receiver<Slot> {
    match places.pop() {
        Some(Place::InLine(place)) => place,
        other => panic!("no place in line: {other:?}"),
    }
}

#[test]
fn short_jobs_are_claimed_ahead_and_take_over_the_slots_of_those_that_end() {
    let slots = short_jobs(2, 2, 1);
    let claim = reserve(&slots, 0);
    assert_eq!((shares(&claim), claim.limit), (vec![(0, 2)], BATCH));
    let mut places = slots.fill(&claim, [0; 5]);
    let [mut fifth, mut fourth, mut third] = [(); 3].map(|()| in_line(&mut places));
    assert_eq!(slots.used().0, 2, "jobs in line occupy no slot");
    assert!(reserve(&slots, 0).queues.is_empty());

    places.pop();
    let third = third.try_recv().expect("the first in line has the slot");
    assert!(fourth.try_recv().is_err());
    drop(fourth);
    drop(third);
    let fifth_slot = fifth.try_recv().expect("a job that has left the line passes its slot on");
    drop((fifth_slot, places));
    assert_eq!(slots.used().0, 0);
}

#[test]
fn a_job_in_line_waits_for_a_slot_that_it_can_use() {
    let slots = self::slots(2, &[1, 1], None, 1);
    let claim = reserve(&slots, 0);
    let mut places = slots.fill(&claim, [0, 1, 0]);
    let mut waiting = in_line(&mut places);
    drop(places.pop());
    assert!(waiting.try_recv().is_err(), "that slot is of the other queue");
    drop(places.pop());
    assert!(waiting.try_recv().is_ok());
}

#[test]
fn short_jobs_take_no_place_of_a_job_that_can_start() {
    let slots = self::slots(200, &[1, 60], None, 1);
    run_shortly(slots.fill(&reserve(&slots, 0), [0]));
    let claim = reserve(&slots, 0);
    let jobs = |queue| claim.queues.iter().find(|share| share.queue == queue).unwrap().jobs();
    assert_eq!((jobs(0), jobs(1), claim.limit), (1 + BATCH - 61, 60, BATCH));
}

#[test]
fn slots_that_a_claim_does_not_need_go_to_the_jobs_in_line_of_another_loop() {
    let slots = short_jobs(2, 2, 2);
    let (first, second) = (reserve(&slots, 0), reserve(&slots, 1));
    let mut places = slots.fill(&first, [0, 0]);
    let mut waiting = in_line(&mut places);
    slots.fill(&second, []);
    assert!(waiting.try_recv().is_ok());
}

#[test]
fn a_backlog_of_one_sort_of_queues_leaves_room_for_the_other() {
    let slots = slots(1_000, &[300, 300], Some(256), 1);
    let all = reserve(&slots, 0);
    assert_eq!(shares(&all), [(2, BATCH), (0, BATCH), (1, BATCH)]);
    assert_eq!(all.limit, 2 * BATCH, "the application may use up the limit");
}

#[test]
fn a_scarce_total_is_claimed_ahead_only_if_the_jobs_of_all_queues_are_short() {
    let slots = self::slots(2, &[2, 2], None, 1);
    run_shortly(slots.fill(&reserve(&slots, 0), [0, 1]));
    let claim = reserve(&slots, 0);
    assert_eq!((claim.scope, claim.limit), (Scope::Shared, BATCH));
    fill(&slots, &claim, |queue| usize::from(queue == 1));
    free(&slots, 1);
    let claim = reserve(&slots, 0);
    assert_eq!(claim.limit, 2);
    let jobs = claim.queues.iter().map(|share| share.jobs()).collect::<Vec<_>>();
    assert!(jobs.contains(&98) && jobs.contains(&2), "{jobs:?}");
}

fn ranked(slots: usize, priority: Priority, reserve: usize) -> QueueSlots {
    QueueSlots::application(slots, priority, reserve)
}

#[test]
fn scarce_slots_are_claimed_by_priority_and_not_ahead() {
    let levels = [Priority::Low, Priority::High, Priority::Normal];
    let slots = slots_of(2, levels.map(|level| ranked(2, level, 0)).into(), 1);
    for _ in 0..3 {
        let claim = reserve(&slots, 0);
        assert_eq!((shares(&claim), claim.limit), (vec![(1, 2), (2, 2), (0, 2)], 2));
        assert!(claim.queues.iter().all(|share| share.ahead == 0));
        run_shortly(slots.fill(&claim, [0, 1]));
    }
}

#[test]
fn jobs_in_line_start_by_priority_and_then_in_order() {
    let levels = [Priority::Low, Priority::High];
    let slots = slots_of(3, levels.map(|level| ranked(2, level, 0)).into(), 1);
    let mut places = slots.fill(&reserve(&slots, 0), [0, 0, 1, 0, 1, 1]);
    let [mut third, mut second, mut low] = [(); 3].map(|()| in_line(&mut places));
    // The low job that ends leaves a slot of its queue, too, but the high ones come first.
    places.remove(0);
    let second = second.try_recv().expect("the high job that came first has the slot");
    assert!(low.try_recv().is_err() && third.try_recv().is_err());
    drop(second);
    let third = third.try_recv().expect("the other high job has the slot");
    assert!(low.try_recv().is_err());
    drop(third);
    assert!(low.try_recv().is_ok());
}

#[test]
fn a_job_has_waited_only_for_slots_that_its_queue_may_use() {
    let slots =
        slots_of(3, vec![ranked(3, Priority::Normal, 0), ranked(3, Priority::Normal, 1)], 1);
    let before = slots.clock.elapsed();
    let waited = |due| [0, 1].map(|queue| slots.has_waited(queue, due));
    fill(&slots, &reserve(&slots, 0), |queue| [2, 0][queue]);
    assert_eq!([0, 1].map(|queue| slots.unused(queue)), [0, 1]);
    free(&slots, 0);
    assert_eq!(
        waited(before - Duration::from_millis(1)),
        [true, false],
        "one was free for the second"
    );
    assert_eq!(waited(before), [false, false]);
}

/// Three claim loops with random claims: no slot is lost or given twice, and each job that a claim
/// was for gets one.
#[test]
fn reserves_are_exact_over_several_claim_loops() {
    let random = Entropy::seeded(1);
    let below = |n: usize| (random.bits() % n as u128) as usize;
    let levels = [Priority::Low, Priority::Normal, Priority::High, Priority::Normal];
    let mut queues: Vec<_> = [3, 0, 2, 1]
        .iter()
        .zip(levels)
        .map(|(reserve, level)| ranked(4, level, *reserve))
        .collect();
    queues.push(QueueSlots::internal(2));
    let slots = slots_of(9, queues, 3);
    let mut claims: [Option<Reservation>; 3] = [const { None }; 3];
    let mut scopes = [Scope::All; 3];
    let mut running = Vec::new();
    for _ in 0..20_000 {
        let claim_loop = below(3);
        match claims[claim_loop].take() {
            None if below(3) == 0 && !running.is_empty() => {
                drop(running.swap_remove(below(running.len())));
            }
            None => {
                let claim = slots.reserve(claim_loop, below(2) == 0, scopes[claim_loop]);
                scopes[claim_loop] = claim.scope;
                claims[claim_loop] = Some(claim);
            }
            Some(claim) => {
                let mut jobs = Vec::new();
                for share in &claim.queues {
                    let max = share.slots.min(claim.limit - jobs.len());
                    jobs.extend(vec![share.queue; below(max + 1)]);
                }
                for place in slots.fill(&claim, jobs) {
                    let Place::Slot(slot) = place else { panic!("no slot: {claim:?}") };
                    running.push(slot);
                }
            }
        }
        let (total, used) = slots.used();
        assert_eq!(total, used[..4].iter().sum::<usize>());
        let with_reserves: usize = (0..4).map(|queue| used[queue].max([3, 0, 2, 1][queue])).sum();
        assert!(with_reserves <= 9 && used.iter().all(|used| *used <= 4), "{used:?}");
    }
    drop((running, claims.map(|claim| claim.map(|claim| slots.fill(&claim, [])))));
    assert_eq!(slots.used().0, 0);
    let state = slots.lock();
    assert_eq!((state.total.free, state.shared_free()), (9, 3));
}
