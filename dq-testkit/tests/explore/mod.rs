//! Explores small worlds exhaustively. A producer and two runners call the contract's state machine
//! in every order and at every time, and answers may be lost. The machine always keeps its
//! promises. For each broken variant, the search finds a shortest sequence that breaks one.
//!
//! The bounds: two jobs with one key, calls per kind, lost answers and crashes, and the time.

mod monitor;
mod search;
mod store;
mod world;

use search::{Found, search};
use store::Variant;
use world::Budget;

/// About three times the larger world's states (some 30,000). A change that makes the worlds much
/// larger fails here instead of running for hours.
const MAX_STATES: usize = 100_000;

fn explore(variant: Variant) -> Option<Found> {
    let needs_two_jobs = variant == Variant::ReplacesInTwoSteps;
    let budget = if needs_two_jobs { Budget::two_jobs() } else { Budget::one_job() };
    search(variant, budget, MAX_STATES).found
}

/// These answers must occur, so that the world is worth exploring.
fn keeps_every_promise(variant: Variant, budget: Budget, answers: &[&str]) {
    let report = search(variant, budget, MAX_STATES);
    println!("{} states, {} steps", report.states, report.steps);
    if let Some(found) = report.found {
        panic!("{found}");
    }
    for answer in answers {
        assert!(report.answers.contains(*answer), "no call was answered with {answer}");
    }
}

#[test]
fn the_machine_keeps_every_promise_to_one_job() {
    let answers = ["Created", "Cancelled", "Accepted", "LostLease", "Until", "AlreadyRunning"];
    keeps_every_promise(Variant::Correct, Budget::one_job(), &answers);
}

#[test]
fn the_machine_keeps_every_promise_to_two_jobs_with_one_key() {
    let answers =
        ["Created", "Replaced", "Kept", "Ended", "Cancelled", "AlreadyRunning", "NotFound"];
    for variant in [Variant::Correct, Variant::CorrectByHistory] {
        keeps_every_promise(variant, Budget::two_jobs(), &answers);
    }
}

/// The search must find this violation.
macro_rules! finds {
    ($($test:ident: $variant:ident => $violation:literal;)*) => {$(
        #[test]
        fn $test() {
            let found = explore(Variant::$variant).expect("a violation");
            println!("{found}");
            assert_eq!(found.violation, $violation, "{found}");
        }
    )*};
}

finds! {
    a_claim_in_two_steps: ClaimsInTwoSteps => "two live leases";
    a_claim_before_the_due_time: ClaimsEarly => "an early start";
    a_claim_that_removes_the_job: AcknowledgesOnClaim => "a lost job";
    a_token_that_is_used_again: ReusesTokens => "a token that is not larger than the last";
    a_lease_that_never_expires: NeverExpires => "a lost job";
    a_lease_that_expires_early: ExpiresEarly => "two live leases";
    an_expiry_that_counts_as_a_failure: CountsExpiries => "a wrong number of failed attempts";
    an_expiry_that_removes_the_job: DropsExpired => "a lost job";
    a_renewal_with_any_token: RenewsAnyToken => "a stale token that renews";
    a_renewal_of_a_expired_lease: RenewsExpired => "a stale token that renews";
    a_settlement_with_any_token: SettlesAnyToken => "a stale token that settles";
    a_settlement_in_two_steps: SettlesInTwoSteps => "a stale token that settles";
    a_retry_that_is_not_counted: ForgetsFailures => "a wrong number of failed attempts";
    a_cancel_of_a_running_job: CancelsRunning => "a start after the end";
    a_cancel_in_two_steps: CancelsInTwoSteps => "a start after the end";
    a_replacement_in_two_steps: ReplacesInTwoSteps => "a lost job";
    a_repeated_call_that_starts_the_job_anew: RepeatsAnew => "a live lease that is refused";
    a_repeated_call_that_stores_an_ended_job: ForgetsEnds => "an ended job that is stored again";
}
