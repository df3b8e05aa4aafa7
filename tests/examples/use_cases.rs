//! The small examples: each prints what its application's users see.

use crate::program::{about, lines};

#[test]
fn a_meeting_reminder_moves_with_the_meeting() {
    let lines = lines("meeting_reminder");
    assert_eq!(about(&lines, "in 15 minutes: "), ["planning"], "{lines:#?}");
    assert_eq!(about(&lines, "lunch: "), ["true", "Cancelled"]);
    assert_eq!(about(&lines, "m-1: "), ["Done "]);
    assert_eq!(about(&lines, "m-3: "), ["Cancelled "]);
    let [late] = about(&lines, "m-2: ")[..] else { panic!("{lines:#?}") };
    assert!(late.starts_with("Skipped started ") && late.contains("after its due time"), "{late}");
}

#[test]
fn a_work_ticket_escalates_until_it_is_closed() {
    let lines = lines("work_ticket");
    let steps = ["the agent is reminded", "the team lead steps in", "another team takes over"];
    assert_eq!(about(&lines, "ticket 1: ")[1..], steps, "{lines:#?}");
    assert_eq!(about(&lines, "ticket 2: ")[1..], ["Cancelled"], "its key ends all steps");
    assert_eq!(about(&lines, "ticket 3: ").len(), 1, "its guard ends it");
}

#[test]
fn an_order_goes_from_courier_to_courier() {
    let lines = lines("courier");
    let offers = ["offered to ann", "offered to bob", "offered to eve"];
    for (order, end) in [("order 1: ", "eve delivers it"), ("order 2: ", "nobody delivers it")] {
        let said = about(&lines, order);
        assert_eq!(said, [&offers[..], &[end]].concat(), "{lines:#?}");
    }
    assert_eq!(about(&lines, "dead jobs: "), ["1"]);
}

#[test]
fn a_recharge_is_polled_with_growing_gaps() {
    let lines = lines("recharge");
    let gap = |gap: &str| format!("not yet, next poll in {gap}");
    let mut wanted = vec!["true".to_owned(), gap("50ms"), gap("100ms"), gap("200ms")];
    assert_eq!(
        about(&lines, "recharge 1: "),
        [&wanted[..], &["succeeded at poll 4".to_owned()]].concat(),
        "{lines:#?}"
    );
    wanted.extend([gap("400ms"), gap("800ms"), "given up, the money goes back".to_owned()]);
    assert_eq!(about(&lines, "recharge 2: "), wanted, "{lines:#?}");
}

#[test]
fn a_reader_is_reminded_once_for_each_book() {
    let lines = lines("reading_progress");
    assert_eq!(about(&lines, "reminders: "), ["3"], "{lines:#?}");
    let mut ann = about(&lines, "ann: continue ");
    ann.sort_unstable();
    assert_eq!(ann, ["\"Emma\" at page 40?", "\"Persuasion\" at page 7?"], "{lines:#?}");
    assert_eq!(about(&lines, "bob: continue "), ["\"Emma\" at page 3?"]);
}
