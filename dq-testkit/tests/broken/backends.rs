//! Backends with one defect each, and the trials and promises that must detect it.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use dq_core::Backend;
use dq_testkit::fixture::memory;
use dq_testkit::history::Promise;

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

pub(crate) const BROKEN_BACKENDS: &[BrokenBackend] = &[
    BrokenBackend {
        name: "fires early",
        add_defect: |opened| {
            let fast = Arc::new(FastClock(opened.clock.clone()));
            let inner = process(Arc::new(memory(fast)));
            Arc::new(FiresEarly { inner, clock: opened.clock })
        },
        failing_trials: &[
            "due/never_early_by_one_millisecond",
            "lease/lapse_is_exact_to_the_millisecond",
        ],
        violates: Some(Promise::NeverEarly),
    },
    BrokenBackend {
        name: "truncates due times to seconds",
        add_defect: |opened| {
            Arc::new(TruncatesToSeconds { inner: opened.process, clock: opened.clock })
        },
        failing_trials: &["due/never_early_by_one_millisecond"],
        violates: Some(Promise::NeverEarly),
    },
    BrokenBackend {
        name: "loses jobs in a crash",
        add_defect: |opened| match opened.opened_before {
            0 => opened.process,
            _ => process(Arc::new(memory(opened.clock))),
        },
        failing_trials: &["crash/jobs_survive_unchanged", "crash/states_survive"],
        violates: None,
    },
    BrokenBackend {
        name: "loses jobs whose lease lapses",
        add_defect: |opened| {
            Arc::new(LosesLapsed { inner: opened.process, leases: Mutex::default() })
        },
        failing_trials: &["lease/lapsed_job_is_redelivered"],
        violates: Some(Promise::NothingLost),
    },
    BrokenBackend {
        name: "leases one job twice in a race",
        add_defect: |opened| {
            Arc::new(LeasesTwice {
                inner: opened.process,
                claims: AtomicUsize::new(0),
                last: Mutex::default(),
            })
        },
        failing_trials: &["lease/concurrent_claims_lease_each_job_once"],
        violates: Some(Promise::OneLeaseAtATime),
    },
    BrokenBackend {
        name: "accepts stale tokens",
        add_defect: |opened| {
            Arc::new(AcceptsStale { inner: opened.process, tokens: Mutex::default() })
        },
        failing_trials: &["lease/stale_token_cannot_settle"],
        violates: Some(Promise::OneLeaseAtATime),
    },
    BrokenBackend {
        name: "renews stale leases",
        add_defect: |opened| Arc::new(RenewsAnything(opened.process)),
        failing_trials: &["lease/stale_token_cannot_renew", "lease/lapsed_lease_cannot_be_renewed"],
        violates: None,
    },
    BrokenBackend {
        name: "ignores cancels",
        add_defect: |opened| Arc::new(IgnoresCancel(opened.process)),
        failing_trials: &["cancel/cancelled_job_never_starts"],
        violates: Some(Promise::CancelIsBinding),
    },
    BrokenBackend {
        name: "ignores keys",
        add_defect: |opened| Arc::new(IgnoresKeys(opened.process)),
        failing_trials: &[
            "keys/keep_leaves_the_existing_job",
            "keys/replace_stores_the_new_job_instead",
        ],
        violates: None,
    },
    BrokenBackend {
        name: "keeps the old payload after a replace",
        add_defect: |opened| Arc::new(KeepsReplaced(opened.process)),
        failing_trials: &["keys/replace_stores_the_new_job_instead"],
        violates: Some(Promise::CancelIsBinding),
    },
    BrokenBackend {
        name: "forgets counts when a lease lapses",
        add_defect: |opened| Arc::new(ForgetsCounts(opened.process)),
        failing_trials: &["lease/lapsed_job_is_redelivered", "lease/every_lapse_is_counted"],
        violates: None,
    },
    BrokenBackend {
        name: "forgets failed attempts",
        add_defect: |opened| Arc::new(ForgetsAttempts(opened.process)),
        failing_trials: &["settle/retry_counts_a_failed_attempt"],
        violates: Some(Promise::FailuresCounted),
    },
    BrokenBackend {
        name: "reorders equal due times",
        add_defect: |opened| Arc::new(ReordersEqualTimes(opened.process)),
        failing_trials: &["due/equal_due_times_are_claimed_in_insertion_order"],
        violates: None,
    },
    BrokenBackend {
        name: "omits next_due",
        add_defect: |opened| Arc::new(OmitsNextDue(opened.process)),
        failing_trials: &[
            "claim/claim_of_zero_jobs_reports_next_due",
            "claim/next_due_is_the_earliest_due_time",
        ],
        violates: None,
    },
    BrokenBackend {
        name: "ignores the limit of a claim",
        add_defect: |opened| Arc::new(IgnoresLimit(opened.process)),
        failing_trials: &["claim/limit_bounds_the_whole_claim"],
        violates: None,
    },
    BrokenBackend {
        name: "reports wrong totals",
        add_defect: |opened| Arc::new(WrongTotals(opened.process)),
        failing_trials: &["stats/totals_count_each_verdict"],
        violates: None,
    },
    BrokenBackend {
        name: "ignores a pause",
        add_defect: |opened| Arc::new(IgnoresPause(opened.process)),
        failing_trials: &["pause/paused_queue_is_not_claimed"],
        violates: None,
    },
    BrokenBackend {
        name: "purges queues with the same prefix",
        add_defect: |opened| Arc::new(PurgesByPrefix(opened.process)),
        failing_trials: &["isolation/similar_queue_names_are_distinct"],
        violates: None,
    },
    BrokenBackend {
        name: "loses every hint",
        add_defect: |opened| Arc::new(LosesHints(opened.process)),
        failing_trials: &[
            "wake/first_job_wakes_a_listener",
            "wake/hint_is_kept_until_it_is_received",
        ],
        violates: None,
    },
    BrokenBackend {
        name: "reports running jobs as moved",
        add_defect: |opened| Arc::new(ReportsRunningAsMoved(opened.process)),
        failing_trials: &["reschedule/running_job_is_not_rescheduled"],
        violates: None,
    },
    BrokenBackend {
        name: "answers a repeated call as a conflict",
        add_defect: |opened| {
            Arc::new(AnswersRepeatsAsKept { inner: opened.process, ids: Mutex::default() })
        },
        failing_trials: &[
            "schedule/repeated_schedule_is_created_in_every_state",
            "schedule/same_id_is_stored_once",
        ],
        violates: None,
    },
    BrokenBackend {
        name: "ignores that jobs are to be remembered",
        add_defect: |opened| Arc::new(IgnoresRemember(opened.process)),
        failing_trials: &["pins/done_job_pins_its_id", "pins/purged_job_pins_its_id"],
        violates: None,
    },
    BrokenBackend {
        name: "stores jobs again that are in the history",
        add_defect: |opened| Arc::new(StoresEndedAgain(opened.process)),
        failing_trials: &[
            "ids/done_job_is_not_stored_again",
            "ids/cancelled_job_is_not_stored_again",
            "ids/replaced_job_does_not_replace_its_successor",
            "ids/ended_ids_among_others_in_one_call",
        ],
        violates: None,
    },
    BrokenBackend {
        name: "pins ids too long",
        add_defect: |opened| Arc::new(PinsTooLong(opened.process)),
        failing_trials: &["pins/pin_ends_after_its_time"],
        violates: None,
    },
    BrokenBackend {
        name: "repeats a step instead of the next",
        add_defect: |opened| Arc::new(RepeatsTheStep(opened.process)),
        failing_trials: &[
            "again/next_step_is_the_same_job_with_another_payload",
            "again/next_step_starts_with_new_counts",
        ],
        violates: Some(Promise::NothingLost),
    },
    BrokenBackend {
        name: "makes the next step by two calls",
        add_defect: |opened| Arc::new(StepsInTwoCalls(opened.process)),
        failing_trials: &["again/key_is_held_between_steps", "again/all_steps_count_as_one_job"],
        violates: None,
    },
    BrokenBackend {
        name: "refuses to detach",
        add_defect: |opened| Arc::new(RefusesToDetach(opened.process)),
        failing_trials: &["detach/both_jobs_run", "detach/every_conflict_policy_detaches"],
        violates: None,
    },
    BrokenBackend {
        name: "leaves the key to a detached job",
        add_defect: |opened| Arc::new(LeavesTheKey(opened.process)),
        failing_trials: &[
            "detach/running_job_has_no_key_any_more",
            "detach/key_refers_to_the_new_job",
        ],
        violates: None,
    },
    BrokenBackend {
        name: "forgets the errors of retries",
        add_defect: |opened| Arc::new(ForgetsErrors(opened.process)),
        failing_trials: &["reasons/error_of_a_retry_is_shown"],
        violates: None,
    },
    BrokenBackend {
        name: "forgets who holds a lease",
        add_defect: |opened| Arc::new(ForgetsHolders(opened.process)),
        failing_trials: &[
            "reasons/holder_of_a_lease_is_shown",
            "history/ended_job_keeps_its_last_run",
        ],
        violates: None,
    },
    BrokenBackend {
        name: "forgets ended jobs",
        add_defect: |opened| Arc::new(ForgetsEndedJobs(opened.process)),
        failing_trials: &[
            "history/done_job_is_remembered",
            "history/cancelled_job_is_remembered",
            "history/replaced_job_is_remembered",
        ],
        violates: None,
    },
    BrokenBackend {
        name: "forgets why jobs ended",
        add_defect: |opened| Arc::new(ForgetsReasonsOfEnds(opened.process)),
        failing_trials: &[
            "history/skipped_job_keeps_its_reason",
            "history/removed_job_keeps_why_it_was_dead",
        ],
        violates: None,
    },
    BrokenBackend {
        name: "remembers payloads",
        add_defect: |opened| Arc::new(RemembersPayloads(opened.process)),
        failing_trials: &["history/ended_job_has_neither_payload_nor_headers"],
        violates: None,
    },
    BrokenBackend {
        name: "remembers ended jobs without the limits of the queue",
        add_defect: |opened| process(Arc::new(memory(opened.clock))),
        failing_trials: &[
            "history/oldest_jobs_are_forgotten_beyond_the_maximum",
            "history/jobs_are_forgotten_after_the_maximum_age",
            "history/nothing_is_remembered_if_it_is_off",
        ],
        violates: None,
    },
    BrokenBackend {
        name: "lists in ascending order only",
        add_defect: |opened| Arc::new(ListsAscending(opened.process)),
        failing_trials: &[
            "browse/descending_listings_are_the_reverse",
            "history/ended_jobs_are_listed_by_the_time_of_their_end",
        ],
        violates: None,
    },
    BrokenBackend {
        name: "lists payloads that were not asked for",
        add_defect: |opened| Arc::new(ListsPayloads(opened.process)),
        failing_trials: &["browse/listings_without_payloads_have_all_the_rest"],
        violates: None,
    },
    BrokenBackend {
        name: "keeps announcements too long",
        add_defect: |opened| Arc::new(AnnouncesTooLong(opened.process)),
        failing_trials: &[
            "registry/announcement_ends_with_its_time",
            "registry/announced_runner_is_listed",
        ],
        violates: None,
    },
    BrokenBackend {
        name: "ignores withdrawals of announcements",
        add_defect: |opened| Arc::new(IgnoresWithdrawals(opened.process)),
        failing_trials: &["registry/announcement_can_be_withdrawn"],
        violates: None,
    },
    BrokenBackend {
        name: "counts a job at an edge before it",
        add_defect: |opened| Arc::new(CountsEdgesBefore(opened.process)),
        failing_trials: &["forecast/job_at_an_edge_counts_after_it"],
        violates: None,
    },
    BrokenBackend {
        name: "reports an unfinished purge as complete",
        add_defect: |opened| Arc::new(ReportsPurgesAsComplete(opened.process)),
        failing_trials: &[
            "isolation/purge_of_thousands_of_jobs",
            "isolation/purge_reports_whether_more_is_left",
        ],
        violates: None,
    },
];

/// A backend without optional capabilities; `Checked` rejects calls that need one.
pub(crate) fn without_capabilities(opened: Opened) -> Arc<dyn Backend> {
    Arc::new(NoCapabilities(opened.process))
}
