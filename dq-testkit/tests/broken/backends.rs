//! Backends with one defect each, and the trials and promises that must detect it.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use dq_core::Backend;
use dq_testkit::fixture::memory;
use dq_testkit::trace::Promise;

use super::layers::*;
use super::subject::{AddDefect, Opened, process};
use super::views::*;

pub(crate) struct BrokenBackend {
    /// The defect, as in "a backend that fires early".
    pub(crate) name: &'static str,
    pub(crate) add_defect: AddDefect,
    pub(crate) failing_trials: &'static [&'static str],
    /// The promise that the trace must violate; `None` if the workload does not show the defect,
    /// for example because it has no crash.
    pub(crate) violates: Option<Promise>,
}

impl BrokenBackend {
    const fn violates(mut self, promise: Promise) -> Self {
        self.violates = Some(promise);
        self
    }
}

const fn broken(
    name: &'static str,
    add_defect: AddDefect,
    failing_trials: &'static [&'static str],
) -> BrokenBackend {
    BrokenBackend { name, add_defect, failing_trials, violates: None }
}

pub(crate) const BROKEN_BACKENDS: &[BrokenBackend] = &[
    broken(
        "fires early",
        |opened| {
            let fast = Arc::new(FastClock(opened.clock.clone()));
            let inner = process(Arc::new(memory(fast)));
            Arc::new(FiresEarly { inner, clock: opened.clock })
        },
        &["due/never_early_by_one_millisecond", "lease/expiry_is_exact_to_the_millisecond"],
    )
    .violates(Promise::NeverEarly),
    broken(
        "truncates due times to seconds",
        |opened| Arc::new(TruncatesToSeconds { inner: opened.process, clock: opened.clock }),
        &["due/never_early_by_one_millisecond"],
    )
    .violates(Promise::NeverEarly),
    broken(
        "loses jobs in a crash",
        |opened| match opened.opened_before {
            0 => opened.process,
            _ => process(Arc::new(memory(opened.clock))),
        },
        &["crash/jobs_survive_unchanged", "crash/every_effect_survives"],
    ),
    broken(
        "loses jobs whose lease expires",
        |opened| Arc::new(LosesExpired { inner: opened.process, leases: Mutex::default() }),
        &["lease/expired_job_is_redelivered"],
    )
    .violates(Promise::NothingLost),
    broken(
        "leases one job twice in a race",
        |opened| {
            Arc::new(LeasesTwice {
                inner: opened.process,
                claims: AtomicUsize::new(0),
                last: Mutex::default(),
            })
        },
        &["lease/concurrent_claims_lease_each_job_once"],
    )
    .violates(Promise::OneLeaseAtATime),
    broken(
        "accepts stale tokens",
        |opened| Arc::new(AcceptsStale { inner: opened.process, tokens: Mutex::default() }),
        &["lease/stale_token_has_no_effect"],
    )
    .violates(Promise::OneLeaseAtATime),
    broken(
        "renews stale leases",
        |opened| Arc::new(RenewsAnything(opened.process)),
        &["lease/stale_token_has_no_effect", "lease/expired_lease_has_no_effect"],
    ),
    broken(
        "ignores cancels",
        |opened| Arc::new(IgnoresCancel(opened.process)),
        &["cancel/cancelled_job_never_starts"],
    )
    .violates(Promise::CancelIsBinding),
    broken(
        "ignores keys",
        |opened| Arc::new(IgnoresKeys(opened.process)),
        &["keys/keep_leaves_the_existing_job", "keys/replace_stores_the_new_job_instead"],
    ),
    broken(
        "keeps the old payload after a replace",
        |opened| Arc::new(KeepsReplaced(opened.process)),
        &["keys/replace_stores_the_new_job_instead"],
    )
    .violates(Promise::CancelIsBinding),
    broken(
        "forgets counts when a lease expires",
        |opened| Arc::new(ForgetsCounts(opened.process)),
        &["lease/expired_job_is_redelivered", "lease/losses_count_consecutive_expires"],
    ),
    broken(
        "forgets failed attempts",
        |opened| Arc::new(ForgetsAttempts(opened.process)),
        &["settle/retry_counts_a_failed_attempt"],
    )
    .violates(Promise::FailuresCounted),
    broken(
        "reorders equal due times",
        |opened| Arc::new(ReordersEqualTimes(opened.process)),
        &["due/equal_due_times_are_claimed_in_insertion_order"],
    ),
    broken(
        "omits next_due",
        |opened| Arc::new(OmitsNextDue(opened.process)),
        &["claim/claim_of_zero_jobs_reports_next_due", "claim/next_due_is_the_earliest_due_time"],
    ),
    broken(
        "ignores the limit of a claim",
        |opened| Arc::new(IgnoresLimit(opened.process)),
        &["claim/limit_bounds_the_whole_claim"],
    ),
    broken(
        "reports wrong totals",
        |opened| Arc::new(WrongTotals(opened.process)),
        &["stats/totals_count_each_verdict"],
    ),
    broken(
        "ignores a pause",
        |opened| Arc::new(IgnoresPause(opened.process)),
        &["pause/paused_queue_is_not_claimed"],
    ),
    broken(
        "purges queues with the same prefix",
        |opened| Arc::new(PurgesByPrefix(opened.process)),
        &["isolation/similar_queue_names_are_distinct"],
    ),
    broken(
        "loses every hint",
        |opened| Arc::new(LosesHints(opened.process)),
        &["wake/first_job_wakes_a_listener", "wake/hint_is_kept_until_it_is_received"],
    ),
    broken(
        "reports running jobs as moved",
        |opened| Arc::new(ReportsRunningAsMoved(opened.process)),
        &["reschedule/running_job_is_not_rescheduled"],
    ),
    broken(
        "answers a repeated call as a conflict",
        |opened| Arc::new(AnswersRepeatsAsKept { inner: opened.process, ids: Mutex::default() }),
        &["schedule/repeated_schedule_is_created_in_every_state"],
    ),
    broken(
        "ignores that jobs are to be remembered",
        |opened| Arc::new(IgnoresRemember(opened.process)),
        &["ids/ended_job_is_not_stored_again", "ids/replaced_job_does_not_replace_its_successor"],
    ),
    broken(
        "stores jobs again that are in the history",
        |opened| Arc::new(StoresEndedAgain(opened.process)),
        &[
            "ids/ended_job_is_not_stored_again",
            "ids/replaced_job_does_not_replace_its_successor",
            "ids/ended_ids_among_others_in_one_call",
        ],
    ),
    broken(
        "pins ids too long",
        |opened| Arc::new(PinsTooLong(opened.process)),
        &["ids/pin_ends_after_its_time"],
    ),
    broken(
        "repeats a step instead of the next",
        |opened| Arc::new(RepeatsTheStep(opened.process)),
        &[
            "again/next_step_is_the_same_job_with_another_payload",
            "again/next_step_starts_with_new_counts",
        ],
    )
    .violates(Promise::NothingLost),
    broken(
        "makes the next step by two calls",
        |opened| Arc::new(StepsInTwoCalls(opened.process)),
        &["again/key_is_held_between_steps", "again/all_steps_count_as_one_job"],
    ),
    broken(
        "refuses to detach",
        |opened| Arc::new(RefusesToDetach(opened.process)),
        &["detach/both_jobs_run", "detach/every_conflict_policy_detaches"],
    ),
    broken(
        "leaves the key to a detached job",
        |opened| Arc::new(LeavesTheKey(opened.process)),
        &["detach/running_job_has_no_key_any_more", "detach/key_refers_to_the_new_job"],
    ),
    broken(
        "forgets the errors of retries",
        |opened| Arc::new(ForgetsErrors(opened.process)),
        &["reasons/error_of_a_retry_is_shown"],
    ),
    broken(
        "forgets who holds a lease",
        |opened| Arc::new(ForgetsHolders(opened.process)),
        &["reasons/holder_of_a_lease_is_shown", "history/ended_job_keeps_its_last_run"],
    ),
    broken(
        "forgets ended jobs",
        |opened| Arc::new(ForgetsEndedJobs(opened.process)),
        &[
            "history/done_job_is_remembered",
            "history/cancelled_job_is_remembered",
            "history/replaced_job_is_remembered",
        ],
    ),
    broken(
        "forgets why jobs ended",
        |opened| Arc::new(ForgetsReasonsOfEnds(opened.process)),
        &["history/skipped_job_keeps_its_reason", "history/removed_job_keeps_why_it_was_dead"],
    ),
    broken(
        "remembers payloads",
        |opened| Arc::new(RemembersPayloads(opened.process)),
        &["history/ended_job_keeps_its_key_and_counts"],
    ),
    broken(
        "remembers ended jobs without the limits of the queue",
        |opened| process(Arc::new(memory(opened.clock))),
        &[
            "history/oldest_jobs_are_forgotten_beyond_the_maximum",
            "history/jobs_are_forgotten_after_the_maximum_age",
            "history/nothing_is_remembered_if_it_is_off",
        ],
    ),
    broken(
        "lists in ascending order only",
        |opened| Arc::new(ListsAscending(opened.process)),
        &[
            "browse/descending_listings_are_the_reverse",
            "history/ended_jobs_are_listed_by_the_time_of_their_end",
        ],
    ),
    broken(
        "lists payloads that were not asked for",
        |opened| Arc::new(ListsPayloads(opened.process)),
        &["browse/listings_without_payloads_have_all_the_rest"],
    ),
    broken(
        "keeps announcements too long",
        |opened| Arc::new(AnnouncesTooLong(opened.process)),
        &["registry/announcement_ends_with_its_time", "registry/announced_runner_is_listed"],
    ),
    broken(
        "ignores withdrawals of announcements",
        |opened| Arc::new(IgnoresWithdrawals(opened.process)),
        &["registry/announcement_can_be_withdrawn"],
    ),
    broken(
        "counts a job at an edge before it",
        |opened| Arc::new(CountsEdgesBefore(opened.process)),
        &["forecast/job_at_an_edge_counts_after_it"],
    ),
    broken(
        "reports an unfinished purge as complete",
        |opened| Arc::new(ReportsPurgesAsComplete(opened.process)),
        &["isolation/purge_reports_whether_more_is_left"],
    ),
];

/// A backend without optional capabilities; `Checked` rejects calls that need one.
pub(crate) fn without_capabilities(opened: Opened) -> Arc<dyn Backend> {
    Arc::new(NoCapabilities(opened.process))
}
