//! Two handlers with one queue code and equal locations (file and line), because one macro call
//! generates both. The error must still name both.

use dq::{ErrorKind, Registry, delay_handler};

macro_rules! two_handlers {
    () => {
        #[delay_handler("SAME")]
        async fn one(_number: u64) {}
        #[delay_handler("SAME")]
        async fn other(_text: String) {}
    };
}

two_handlers!();

#[test]
fn both_handlers_are_named_in_the_error() {
    let error = Registry::linked().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Duplicate);
    assert!(error.message().contains("::one") && error.message().contains("::other"), "{error}");
}
