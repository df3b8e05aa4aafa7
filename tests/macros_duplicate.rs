//! Handlers with the same code, in a separate program because its registry is invalid.

use dq::{Dq, ErrorKind, HandlerFn, Registration, Registry, delay_handler};

#[delay_handler("ORDER_TIMEOUT")]
async fn first() {}

mod elsewhere {
    use super::delay_handler;

    const CODE: &str = "ORDER_TIMEOUT";

    #[delay_handler(CODE)]
    pub(crate) async fn second() {}
}

// One macro call generates both, so their locations are equal, too.
macro_rules! two_handlers {
    () => {
        #[delay_handler("SAME")]
        async fn one(_number: u64) {}
        #[delay_handler("SAME")]
        async fn other(_text: String) {}
    };
}

two_handlers!();

fn insert<H: HandlerFn>(registry: &mut Registry) -> dq::Result<()> {
    registry.insert(Registration::of::<H>().handlers()?.remove(0))
}

#[test]
fn both_handlers_and_their_locations_are_named() {
    let mut registry = Registry::default();
    insert::<first>(&mut registry).unwrap();
    insert::<one>(&mut registry).unwrap();
    for (error, needles) in [
        (
            insert::<elsewhere::second>(&mut registry).unwrap_err(),
            [
                "macros_duplicate::first at tests/macros_duplicate.rs:6",
                "macros_duplicate::elsewhere::second at tests/macros_duplicate.rs:14",
            ],
        ),
        (insert::<other>(&mut registry).unwrap_err(), ["::one", "::other"]),
    ] {
        assert_eq!(error.kind(), ErrorKind::Duplicate);
        let message = error.to_string();
        assert!(needles.iter().all(|needle| message.contains(needle)), "{message}");
    }
    insert::<first>(&mut registry).expect("the same handler may be added twice");
}

#[tokio::test]
async fn a_runner_is_not_built() {
    let dq = Dq::connect("memory:").await.unwrap();
    let error = dq.runner().build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Duplicate);

    // Explicit registration uses only one of them.
    dq.runner().without_linked_handlers().register::<elsewhere::second>().build().unwrap();
}
