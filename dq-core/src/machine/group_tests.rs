//! Groups: a claim takes what a search through all waiting jobs would take, after any calls.

use std::collections::HashMap;
use std::time::Duration;

use super::affinity::Affinity;
use super::state_machine::Machine;
use crate::backend::{
    BrowseParams, ClaimParams, Lease, Operation, Renewal, Reschedule, Settlement, Verdict, Want,
};
use crate::entropy::Entropy;
use crate::model::{
    Due, Flow, HistoryLimits, Job, JobId, JobRef, JobState, JobView, NewJob, QueueName, Timestamp,
};

const GROUPS: [&str; 3] = ["a", "b", "c"];
const LEASE: Duration = Duration::from_millis(40);

/// Random calls on one queue, with a lease's length of virtual time now and then.
struct Walk {
    machine: Machine,
    entropy: Entropy,
    now: Timestamp,
    jobs: u128,
    leases: Vec<Lease>,
    limit: Option<u32>,
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

impl Walk {
    fn new(seed: u64) -> Self {
        Self {
            machine: Machine::default(),
            entropy: Entropy::seeded(seed),
            now: Timestamp::from_millis(1_000),
            jobs: 0,
            leases: Vec::new(),
            limit: None,
        }
    }

    fn below(&self, end: usize) -> usize {
        (self.entropy.fraction() * end as f64) as usize
    }

    fn browse(&mut self, state: JobState) -> Vec<JobView> {
        let queue = queue();
        self.machine.browse(BrowseParams::new(&queue, state).limit(1_000), self.now).jobs
    }

    fn due(&self) -> Due {
        Due::After(Duration::from_millis(self.below(30) as u64))
    }

    fn any_job(&self) -> JobRef {
        let number = self.below(self.jobs.max(1) as usize) as u128;
        JobRef::new(queue(), JobId::from_bytes(number.to_be_bytes()))
    }

    fn step(&mut self) {
        match self.below(12) {
            0..3 => {
                let id = JobId::from_bytes(self.jobs.to_be_bytes());
                self.jobs += 1;
                let mut job = NewJob::new(id, queue(), self.due(), Default::default());
                if let Some(group) = GROUPS.get(self.below(4)) {
                    job = job.group(*group);
                }
                assert!(self.machine.schedule(job, (), self.now).is_stored());
            }
            3..6 => self.claim(),
            6..8 if !self.leases.is_empty() => {
                let lease = self.leases.swap_remove(self.below(self.leases.len()));
                let verdict = match self.below(4) {
                    0 => Verdict::Done,
                    1 => Verdict::Snooze(self.due()),
                    2 => Verdict::retry(self.due(), "failed"),
                    _ => Verdict::Release { started: true },
                };
                self.machine.settle(&Settlement::new(lease, verdict), self.now);
            }
            8 => {
                let _ = self.machine.cancel(&self.any_job(), self.now);
            }
            9 => {
                let reschedule = Reschedule { job: self.any_job(), due: self.due() };
                let _ = self.machine.reschedule(&reschedule, self.now);
            }
            10 => {
                self.limit = [None, Some(1), Some(2), Some(3), Some(4)][self.below(5)];
                let flow = Flow { group_max_running: self.limit, ..Flow::UNLIMITED };
                self.machine.operate(Operation::DeclareFlow { queue: &queue(), flow }, self.now);
            }
            _ => {
                for lease in &self.leases {
                    let renewal = Renewal::new(lease.clone(), LEASE);
                    self.machine.renew(&renewal, self.now);
                }
                self.now = self.now + Duration::from_millis(self.below(25) as u64);
            }
        }
    }

    fn claim(&mut self) {
        let max = self.below(4);
        let starting = self.below(max + 1);
        let expected = self.search(max, starting);
        let want = [Want::new(queue(), max, LEASE).starting(starting)];
        let params = ClaimParams::new(&want, max, "worker");
        let claimed = match self.below(2) {
            0 => self.machine.claim(params, self.now),
            _ => {
                let affinity = Affinity {
                    prefers: |_: &Job| true,
                    claim_ahead: Duration::ZERO,
                    reserved_for: Duration::ZERO,
                };
                self.machine.claim_preferring(params, &affinity, self.now)
            }
        };
        let ids: Vec<JobId> = claimed.jobs.iter().map(|leased| leased.job.id).collect();
        assert_eq!(ids, expected);
        self.leases.extend(claimed.jobs.iter().map(|leased| leased.lease()));
    }

    /// A restored machine claims the same, also with preferences.
    fn claim_as_restored(&mut self) {
        let mut restored: Machine =
            Machine::restore(self.machine.snapshot(), HistoryLimits::default());
        for odd in [0, 1] {
            let affinity = Affinity {
                prefers: |job: &Job| job.id.to_bytes()[15] % 2 == odd,
                claim_ahead: Duration::from_millis(2),
                reserved_for: Duration::from_millis(20),
            };
            let want = [Want::new(queue(), 2, LEASE)];
            let claim = |machine: &mut Machine| {
                let params = ClaimParams::new(&want, 2, "worker");
                machine.claim_preferring(params, &affinity, self.now).jobs
            };
            let claimed = claim(&mut self.machine);
            assert_eq!(claim(&mut restored), claimed);
            self.leases.extend(claimed.iter().map(|leased| leased.lease()));
        }
    }

    /// Returns the earliest ready jobs whose groups are not full, up to the first one that would
    /// wait in a runner and fill more than half of its group's limit.
    fn search(&mut self, max: usize, starting: usize) -> Vec<JobId> {
        let mut running: HashMap<String, u32> = HashMap::new();
        for view in self.browse(JobState::Running) {
            if let Some(group) = view.job.group() {
                *running.entry(group.to_owned()).or_default() += 1;
            }
        }
        let ready = self.browse(JobState::Ready);
        assert!(ready.is_sorted_by_key(|view| view.job.due));
        let mut found = Vec::new();
        for view in ready {
            if let (Some(group), Some(limit)) = (view.job.group(), self.limit) {
                let running = running.entry(group.to_owned()).or_default();
                if *running >= limit {
                    continue;
                }
                *running += 1;
                if found.len() >= starting && *running * 2 > limit {
                    break;
                }
            }
            found.push(view.job.id);
        }
        found.truncate(max);
        found
    }

    fn check_counts(&mut self) {
        let stats = self.machine.stats(&[queue()], self.now).remove(0);
        let count = |walk: &mut Self, state| walk.browse(state).len() as u64;
        let (scheduled, ready) = (count(self, JobState::Scheduled), count(self, JobState::Ready));
        assert_eq!((stats.scheduled, stats.ready), (scheduled, ready));
        assert_eq!(stats.running, count(self, JobState::Running));
        let edges = [Timestamp::EPOCH, self.now + Duration::from_secs(1)];
        assert_eq!(self.machine.forecast(&queue(), &edges), [scheduled + ready]);
    }
}

#[test]
fn a_restored_machine_claims_the_same() {
    for seed in 0..300 {
        let mut walk = Walk::new(seed);
        for _ in 0..30 {
            for _ in 0..5 {
                walk.step();
            }
            walk.claim_as_restored();
        }
    }
}

#[test]
fn a_claim_takes_what_a_search_would_take() {
    for seed in 0..300 {
        let mut walk = Walk::new(seed);
        for _ in 0..300 {
            walk.step();
        }
        walk.check_counts();
        // Nothing stays parked.
        while !walk.browse(JobState::Running).is_empty() || !walk.browse(JobState::Ready).is_empty()
        {
            for lease in std::mem::take(&mut walk.leases) {
                walk.machine.settle(&Settlement::new(lease, Verdict::Done), walk.now);
            }
            let before = walk.leases.len();
            walk.claim();
            if walk.leases.len() == before {
                walk.now = walk.now + LEASE;
            }
        }
    }
}

#[test]
fn a_claim_parks_a_bounded_number_of_jobs_and_the_next_one_goes_on() {
    let mut machine: Machine = Machine::default();
    let flow = Flow::UNLIMITED.group_max_running(1);
    let now = Timestamp::from_millis(1_000);
    machine.operate(Operation::DeclareFlow { queue: &queue(), flow }, now);
    for number in 0..2_500_u128 {
        let group = if number < 2_499 { "a" } else { "b" };
        let id = JobId::from_bytes(number.to_be_bytes());
        let job = NewJob::new(id, queue(), Due::NOW, Default::default()).group(group);
        assert!(machine.schedule(job, (), now).is_stored());
    }
    let want = [Want::new(queue(), 2, LEASE)];
    let mut claim = || machine.claim(ClaimParams::new(&want, 2, "worker"), now);
    let claims: Vec<_> = (0..4).map(|_| claim()).collect();
    let groups = claims.iter().flat_map(|it| &it.jobs).map(|it| it.job.group().unwrap());
    assert_eq!(groups.collect::<Vec<_>>(), ["a", "b"]);
    assert!(claims[0].next_due <= Some(now) && claims[3].next_due > Some(now));
}

/// Runs jobs of 100 ms in eight slots; returns when the last one of the small group has ended.
fn end_of_small_group(jobs_of_big: u128, limit: Option<u32>) -> Timestamp {
    const SLOTS: usize = 8;
    const RUN: Duration = Duration::from_millis(100);
    let mut machine: Machine = Machine::default();
    let flow = Flow { group_max_running: limit, ..Flow::UNLIMITED };
    let mut now = Timestamp::from_millis(1_000);
    machine.operate(Operation::DeclareFlow { queue: &queue(), flow }, now);
    for number in 0..jobs_of_big + 10 {
        let group = if number < jobs_of_big { "big" } else { "small" };
        let id = JobId::from_bytes(number.to_be_bytes());
        let job = NewJob::new(id, queue(), Due::NOW, Default::default()).group(group);
        assert!(machine.schedule(job, (), now).is_stored());
    }
    let mut left = 10;
    loop {
        let mut leased = Vec::new();
        loop {
            let want = [Want::new(queue(), SLOTS - leased.len(), RUN * 2)];
            let claimed = machine.claim(ClaimParams::new(&want, SLOTS, "worker"), now);
            leased.extend(claimed.jobs);
            if leased.len() == SLOTS || claimed.next_due > Some(now) {
                break;
            }
        }
        now = now + RUN;
        for leased in leased {
            machine.settle(&Settlement::new(leased.lease(), Verdict::Done), now);
            left -= usize::from(leased.job.group() == Some("small"));
        }
        if left == 0 {
            return now;
        }
    }
}

#[test]
fn a_small_group_beside_a_big_one_takes_at_most_twice_its_time() {
    let start = Timestamp::from_millis(1_000);
    let alone = end_of_small_group(0, Some(2)).since(start);
    let beside = end_of_small_group(100_000, Some(2)).since(start);
    assert!(beside <= alone * 2, "{beside:?}, alone {alone:?}");
    assert!(
        end_of_small_group(1_000, None).since(start) > alone * 10,
        "the test sees the difference"
    );
}

#[test]
fn a_new_job_of_a_full_group_wakes_nobody_and_hides_no_other_job() {
    let mut walk = Walk::new(1);
    let flow = Flow { group_max_running: Some(1), ..Flow::UNLIMITED };
    walk.machine.operate(Operation::DeclareFlow { queue: &queue(), flow }, walk.now);
    walk.machine.take_hints();
    let schedule = |walk: &mut Walk, group: &str| {
        walk.jobs += 1;
        let id = JobId::from_bytes(walk.jobs.to_be_bytes());
        let job = NewJob::new(id, queue(), Due::NOW, Default::default()).group(group);
        assert!(walk.machine.schedule(job, (), walk.now).is_stored());
        walk.machine.take_hints().len()
    };
    assert_eq!(schedule(&mut walk, "a"), 1);
    schedule(&mut walk, "a");
    // One job runs, and the other is parked.
    let want = [Want::new(queue(), 2, LEASE)];
    let claimed = walk.machine.claim(ClaimParams::new(&want, 2, "w"), walk.now);
    assert_eq!(claimed.jobs.len(), 1);
    assert_eq!(schedule(&mut walk, "a"), 0, "its group is full");
    assert_eq!(schedule(&mut walk, "b"), 1, "it can start");
}
