//! What the macros accept, and what they say to what they do not.
//!
//! After a change of a message: `TRYBUILD=overwrite cargo test -p dq-ui-tests`, then read the diff.

#[test]
fn accepted() {
    trybuild::TestCases::new().pass("pass/*.rs");
}

#[test]
fn refused() {
    trybuild::TestCases::new().compile_fail("fail/*.rs");
}
