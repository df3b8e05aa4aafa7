//! Breadth-first search through all states of a world.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::fmt;

use super::monitor::Violation;
use super::store::{Answer, Variant};
use super::world::{Action, Budget, World};

/// A violation, with the shortest sequence of steps that leads to it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) violation: Violation,
    trace: Vec<Action>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:", self.violation)?;
        for (number, action) in self.trace.iter().enumerate() {
            writeln!(f, "{:>4}. {action}", number + 1)?;
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) states: usize,
    pub(crate) steps: usize,
    /// The names of the answers that occurred, such as `Created`.
    pub(crate) answers: BTreeSet<String>,
    pub(crate) found: Option<Found>,
}

/// The number of the state before, and the step from there.
type Origin = Option<(usize, Action)>;

/// Visits every state, until one breaks a promise.
///
/// # Panics
/// If there are more than `max_states` states.
pub(crate) fn search(variant: Variant, budget: Budget, max_states: usize) -> Report {
    let mut report = Report::default();
    let start = World::new(variant, budget);
    let mut seen = HashSet::from([start.fingerprint()]);
    let mut origins: Vec<Origin> = vec![None];
    let mut queue = VecDeque::from([(0, start)]);
    while let Some((number, world)) = queue.pop_front() {
        for action in world.actions() {
            report.steps += 1;
            let violation = match world.after(action) {
                Ok((next, answer)) => {
                    report.answers.extend(answer.and_then(name));
                    if !seen.insert(next.fingerprint()) {
                        continue;
                    }
                    assert!(origins.len() < max_states, "more than {max_states} states");
                    let checked = next.check();
                    queue.push_back((origins.len(), next));
                    origins.push(Some((number, action)));
                    checked.err()
                }
                Err(violation) => Some(violation),
            };
            if let Some(violation) = violation {
                report.found = Some(Found { violation, trace: trace(&origins, number, action) });
                report.states = origins.len();
                return report;
            }
        }
    }
    report.states = origins.len();
    report
}

/// The steps from the first state to this one, and the last step.
fn trace(origins: &[Origin], state: usize, last: Action) -> Vec<Action> {
    let mut trace = vec![last];
    let mut at = state;
    while let Some((before, action)) = origins[at] {
        trace.push(action);
        at = before;
    }
    trace.reverse();
    trace
}

/// The name of an answer, such as `Created`. Claims have none.
fn name(answer: Answer) -> Option<String> {
    let text = match answer {
        Answer::Scheduled(answer) => format!("{answer:?}"),
        Answer::Cancelled(answer) => format!("{answer:?}"),
        Answer::Renewed(answer) => format!("{answer:?}"),
        Answer::Settled(answer) => format!("{answer:?}"),
        Answer::Claimed(_) => return None,
    };
    text.split('(').next().map(str::to_owned)
}
