//! Every way to break a promise that the suite has to catch.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use dq_core::{Backend, MemoryBackend};
use dq_testkit::faults::{Layer, Layered};
use dq_testkit::history::Clause;

use super::layers::*;
use super::subject::{Make, Opened, process};

/// A broken backend, with who must notice.
pub(crate) struct Break {
    pub(crate) name: &'static str,
    pub(crate) make: Make,
    /// The trials that are there for just this.
    pub(crate) caught_by: &'static [&'static str],
    /// What a history of it proves, if clients can see the breach.
    pub(crate) proven: Option<Clause>,
}

pub(crate) const BREAKS: &[Break] = &[
    Break {
        name: "fires early",
        make: |opened| {
            let ahead = Arc::new(Ahead(opened.clock.clone()));
            let inner = process(Arc::new(MemoryBackend::new(ahead)));
            layer(FiresEarly { inner, clock: opened.clock })
        },
        caught_by: &["due/never_early_by_a_millisecond", "lease/lapse_is_exact_to_the_millisecond"],
        proven: Some(Clause::NeverEarly),
    },
    Break {
        name: "cuts due times to seconds",
        make: |opened| layer(CutsToSeconds { inner: opened.process, clock: opened.clock }),
        caught_by: &["due/never_early_by_a_millisecond"],
        proven: Some(Clause::NeverEarly),
    },
    Break {
        name: "loses jobs in a crash",
        make: |opened| match opened.before {
            0 => opened.process,
            _ => process(Arc::new(MemoryBackend::new(opened.clock))),
        },
        caught_by: &["crash/jobs_survive_as_they_were", "crash/each_state_survives"],
        proven: None,
    },
    Break {
        name: "loses jobs whose lease lapses",
        make: |opened| layer(LosesLapsed { inner: opened.process, leases: Mutex::default() }),
        caught_by: &["lease/lapse_brings_the_job_back"],
        proven: Some(Clause::NothingLost),
    },
    Break {
        name: "leases one job twice in a race",
        make: |opened| {
            layer(LeasesTwice {
                inner: opened.process,
                claims: AtomicUsize::new(0),
                last: Mutex::default(),
            })
        },
        caught_by: &["lease/movers_race_and_each_job_is_leased_once"],
        proven: Some(Clause::OneAtATime),
    },
    Break {
        name: "accepts stale tokens",
        make: |opened| layer(AcceptsStale { inner: opened.process, tokens: Mutex::default() }),
        caught_by: &["lease/stale_token_settles_nothing"],
        proven: Some(Clause::OneAtATime),
    },
    Break {
        name: "renews whatever it is asked to",
        make: |opened| layer(RenewsAnything(opened.process)),
        caught_by: &["lease/stale_token_renews_nothing", "lease/renewal_after_the_lapse_is_lost"],
        proven: None,
    },
    Break {
        name: "ignores cancels",
        make: |opened| layer(IgnoresCancel(opened.process)),
        caught_by: &["cancel/cancelled_job_never_starts"],
        proven: Some(Clause::SaysWhatHappened),
    },
    Break {
        name: "ignores keys",
        make: |opened| layer(IgnoresKeys(opened.process)),
        caught_by: &["keys/keep_leaves_the_first", "keys/replace_puts_the_new_in_its_place"],
        proven: None,
    },
    Break {
        name: "keeps the old payload after a replace",
        make: |opened| layer(KeepsReplaced(opened.process)),
        caught_by: &["keys/replace_puts_the_new_in_its_place"],
        proven: Some(Clause::SaysWhatHappened),
    },
    Break {
        name: "forgets counts when a lease lapses",
        make: |opened| layer(ForgetsCounts(opened.process)),
        caught_by: &["lease/lapse_brings_the_job_back", "lease/lapse_counts_every_time"],
        proven: None,
    },
    Break {
        name: "forgets failed attempts",
        make: |opened| layer(ForgetsAttempts(opened.process)),
        caught_by: &["settle/retry_counts_each_failure"],
        proven: Some(Clause::FailureCounted),
    },
    Break {
        name: "mixes up equal due times",
        make: |opened| layer(MixesUp(opened.process)),
        caught_by: &["due/equal_times_in_order_of_insertion"],
        proven: None,
    },
    Break {
        name: "does not say when to come again",
        make: |opened| layer(HasNoNextDue(opened.process)),
        caught_by: &["claim/asking_for_nothing_says_when", "claim/next_due_is_the_next_due_time"],
        proven: None,
    },
    Break {
        name: "ignores the limit of a claim",
        make: |opened| layer(IgnoresLimit(opened.process)),
        caught_by: &["claim/at_most_limit_in_all"],
        proven: None,
    },
    Break {
        name: "counts totals wrong",
        make: |opened| layer(CountsWrong(opened.process)),
        caught_by: &["stats/totals_count_each_way_out"],
        proven: None,
    },
    Break {
        name: "ignores a pause",
        make: |opened| layer(IgnoresPause(opened.process)),
        caught_by: &["pause/paused_queue_gives_nothing"],
        proven: None,
    },
    Break {
        name: "purges what resembles the queue",
        make: |opened| layer(PurgesByPrefix(opened.process)),
        caught_by: &["isolation/names_that_resemble_each_other_stay_apart"],
        proven: None,
    },
    Break {
        name: "loses every hint",
        make: |opened| layer(LosesHints(opened.process)),
        caught_by: &["wake/first_job_wakes", "wake/hint_is_kept_until_it_is_looked_at"],
        proven: None,
    },
    Break {
        name: "moves jobs that run",
        make: |opened| layer(SaysMoved(opened.process)),
        caught_by: &["reschedule/running_job_is_not_moved"],
        proven: None,
    },
];

/// Nothing but the core, and all that is beyond it refused by `Checked`.
pub(crate) fn bare(opened: Opened) -> Arc<dyn Backend> {
    layer(Bare(opened.process))
}

fn layer<L: Layer>(layer: L) -> Arc<dyn Backend> {
    Arc::new(Layered(layer))
}
