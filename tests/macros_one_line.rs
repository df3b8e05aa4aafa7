//! Two handlers of one code in one line, as a macro may write them.

use dq::{ErrorKind, Registry, delay_handler};

macro_rules! two {
    () => {
        #[delay_handler("SAME")]
        async fn one(_number: u64) {}
        #[delay_handler("SAME")]
        async fn other(_text: String) {}
    };
}

two!();

#[test]
fn they_are_two_all_the_same() {
    let error = Registry::linked().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Duplicate);
    assert!(error.message().contains("::one") && error.message().contains("::other"), "{error}");
}
