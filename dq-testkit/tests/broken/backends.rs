//! Backends with one defect each, and the trials and promises that must detect it.

use std::sync::Arc;

use dq_testkit::fixture::memory;
use dq_testkit::trace::Promise;

use super::jobs::*;
use super::layers::*;
use super::leases::*;
use super::limits::*;
use super::operators::*;
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
        FiresEarly::over,
        &["due/never_early_by_one_millisecond", "lease/expiry_is_exact_to_the_millisecond"],
    )
    .violates(Promise::NeverEarly),
    broken(
        "truncates due times to seconds",
        TruncatesToSeconds::over,
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
        LosesExpired::over,
        &["lease/expired_job_is_redelivered"],
    )
    .violates(Promise::NothingLost),
    broken(
        "leases one job twice in a race",
        LeasesTwice::over,
        &["lease/concurrent_claims_lease_each_job_once"],
    )
    .violates(Promise::OneLeaseAtATime),
    broken("accepts stale tokens", AcceptsStale::over, &["lease/stale_token_has_no_effect"])
        .violates(Promise::OneLeaseAtATime),
    broken("settles in two steps", SettlesInTwoSteps::over, &[]).violates(Promise::OneLeaseAtATime),
    broken(
        "uses a token for all leases of a job",
        |opened| {
            let process = AcceptsStale::over(opened.clone());
            ReusesTokens::over(Opened { process, ..opened })
        },
        &["lease/tokens_grow_with_each_lease"],
    )
    .violates(Promise::OneLeaseAtATime),
    broken(
        "settles jobs that it leases",
        AcknowledgesOnClaim::over,
        &["lease/expired_job_is_redelivered"],
    )
    .violates(Promise::NothingLost),
    broken("keeps expired leases", NeverExpires::over, &["lease/expired_job_is_redelivered"]),
    broken(
        "counts expired leases as failures",
        CountsExpiries::over,
        &["lease/expired_job_is_redelivered"],
    )
    .violates(Promise::FailuresCounted),
    broken(
        "renews stale leases",
        RenewsAnything::over,
        &["lease/stale_token_has_no_effect", "lease/expired_lease_has_no_effect"],
    ),
    broken("ignores cancels", IgnoresCancel::over, &["cancel/cancelled_job_never_starts"])
        .violates(Promise::CancelIsBinding),
    broken("cancels in two steps", CancelsInTwoSteps::over, &[]).violates(Promise::CancelIsBinding),
    broken(
        "ignores keys",
        IgnoresKeys::over,
        &["keys/keep_leaves_the_existing_job", "keys/replace_stores_the_new_job_instead"],
    ),
    broken(
        "keeps the old payload after a replace",
        KeepsReplaced::over,
        &["keys/replace_stores_the_new_job_instead"],
    )
    .violates(Promise::CancelIsBinding),
    broken(
        "forgets counts when a lease expires",
        ForgetsCounts::over,
        &["lease/expired_job_is_redelivered", "lease/losses_count_consecutive_expiries"],
    ),
    broken(
        "forgets failed attempts",
        ForgetsAttempts::over,
        &["settle/retry_counts_a_failed_attempt"],
    )
    .violates(Promise::FailuresCounted),
    broken(
        "reorders equal due times",
        ReordersEqualTimes::over,
        &["due/equal_due_times_are_claimed_in_insertion_order"],
    ),
    broken(
        "omits next_due",
        OmitsNextDue::over,
        &["claim/claim_of_zero_jobs_reports_next_due", "claim/next_due_is_the_earliest_due_time"],
    ),
    broken(
        "ignores the limit of a claim",
        IgnoresLimit::over,
        &["claim/limit_bounds_the_whole_claim"],
    ),
    broken("reports wrong totals", WrongTotals::over, &["stats/totals_count_each_verdict"]),
    broken("ignores a pause", IgnoresPause::over, &["pause/paused_queue_is_not_claimed"]),
    broken(
        "purges queues with the same prefix",
        PurgesByPrefix::over,
        &["isolation/similar_queue_names_are_distinct"],
    ),
    broken(
        "loses every hint",
        LosesHints::over,
        &[
            "wake/first_job_wakes_a_listener",
            "wake/hint_is_kept_until_it_is_received",
            "flow/room_wakes_a_worker",
            "flow/raised_limit_wakes_a_worker",
        ],
    ),
    broken(
        "runs one job more than the limit",
        RunsOneTooMany::over,
        &[
            "flow/limit_bounds_the_running_jobs",
            "flow/clients_share_a_limit",
            "flow/concurrent_claims_keep_the_limit",
        ],
    ),
    broken(
        "forgets overridden limits",
        ForgetsOverrides::over,
        &["flow/override_stands_in_for_the_declaration"],
    ),
    broken("throttles only the job", ThrottlesOneJob::over, &["flow/throttle_closes_the_queue"]),
    broken(
        "reports running jobs as moved",
        ReportsRunningAsMoved::over,
        &["targets/leased_job_is_running"],
    ),
    broken(
        "answers a repeated call as a conflict",
        AnswersRepeatsAsKept::over,
        &["schedule/repeated_schedule_is_created_in_every_state"],
    ),
    broken(
        "ignores that jobs are to be remembered",
        IgnoresRemember::over,
        &["ids/ended_job_is_not_stored_again", "ids/replaced_job_does_not_replace_its_successor"],
    ),
    broken(
        "stores jobs again that are in the history",
        StoresEndedAgain::over,
        &[
            "ids/ended_job_is_not_stored_again",
            "ids/replaced_job_does_not_replace_its_successor",
            "ids/ended_ids_among_others_in_one_call",
        ],
    ),
    broken("pins ids too long", PinsTooLong::over, &["ids/pin_ends_after_its_time"]),
    broken(
        "repeats a step instead of the next",
        RepeatsTheStep::over,
        &[
            "again/next_step_is_the_same_job_with_another_payload",
            "again/next_step_starts_with_new_counts",
        ],
    )
    .violates(Promise::NothingLost),
    broken(
        "makes the next step by two calls",
        StepsInTwoCalls::over,
        &["keys/key_is_held_until_the_job_ends_or_dies", "stats/totals_count_each_verdict"],
    ),
    broken("refuses to detach", RefusesToDetach::over, &["detach/both_jobs_run"]),
    broken(
        "leaves the key to a detached job",
        LeavesTheKey::over,
        &["detach/key_refers_to_the_new_job_only"],
    ),
    broken(
        "forgets the errors of retries",
        ForgetsErrors::over,
        &["reasons/error_of_a_retry_is_shown"],
    ),
    broken(
        "forgets who holds a lease",
        ForgetsHolders::over,
        &["reasons/holder_of_a_lease_is_shown", "history/ended_job_keeps_its_last_run"],
    ),
    broken(
        "forgets ended jobs",
        ForgetsEndedJobs::over,
        &["history/every_ended_job_is_remembered"],
    ),
    broken(
        "forgets why jobs ended",
        ForgetsReasonsOfEnds::over,
        &["history/skipped_job_keeps_its_reason", "history/removed_job_keeps_why_it_was_dead"],
    ),
    broken(
        "remembers payloads",
        RemembersPayloads::over,
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
        ListsAscending::over,
        &[
            "browse/pages_of_any_size_list_the_same_jobs_in_either_order",
            "history/ended_jobs_are_listed_by_the_time_of_their_end",
        ],
    ),
    broken(
        "lists payloads that were not asked for",
        ListsPayloads::over,
        &["browse/listings_without_payloads_have_all_the_rest"],
    ),
    broken(
        "keeps announcements too long",
        AnnouncesTooLong::over,
        &["registry/announcement_ends_with_its_time", "registry/announced_runner_is_listed"],
    ),
    broken(
        "ignores withdrawals of announcements",
        IgnoresWithdrawals::over,
        &["registry/announcement_can_be_withdrawn"],
    ),
    broken(
        "counts a job at an edge before it",
        CountsEdgesBefore::over,
        &["forecast/job_at_an_edge_counts_after_it"],
    ),
    broken(
        "reports an unfinished purge as complete",
        ReportsPurgesAsComplete::over,
        &["isolation/purge_reports_whether_more_is_left"],
    ),
];
