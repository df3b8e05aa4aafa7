//! Two handlers with the same code, in a separate program because its registry is invalid.

use dq::{Dq, ErrorKind, Registration, Registry, delay_handler};

#[delay_handler("ORDER_TIMEOUT")]
async fn first() {}

mod elsewhere {
    use super::delay_handler;

    const CODE: &str = "ORDER_TIMEOUT";

    #[delay_handler(CODE)]
    pub(crate) async fn second() {}
}

#[test]
fn both_source_locations_are_named() {
    let error = Registry::linked().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Duplicate);
    let message = error.to_string();
    assert!(message.contains("ORDER_TIMEOUT"), "{message}");
    assert!(
        message.contains("macros_duplicate::first at tests/macros_duplicate.rs:6"),
        "{message}"
    );
    let second = "macros_duplicate::elsewhere::second at tests/macros_duplicate.rs:14";
    assert!(message.contains(second), "{message}");
}

#[tokio::test]
async fn a_runner_is_not_built() {
    let dq = Dq::connect("memory:").await.unwrap();
    let error = dq.runner().build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Duplicate);

    // Explicit registration uses only one of them.
    dq.runner().without_linked_handlers().register::<elsewhere::second>().build().unwrap();
}

#[test]
fn the_same_handler_may_be_added_twice() {
    let mut registry = Registry::default();
    for _ in 0..2 {
        registry.insert(Registration::of::<first>().handlers().unwrap().remove(0)).unwrap();
    }
    assert_eq!(registry.len(), 1);
}
