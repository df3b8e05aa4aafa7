//! Programs that must compile, and the compiler's messages for those that must not.
//!
//! After a change of a message: `TRYBUILD=overwrite cargo test -p dq-ui-tests`, then read the diff.

#[test]
fn valid_programs_compile() {
    trybuild::TestCases::new().pass("pass/*.rs");
}

#[test]
fn invalid_programs_are_refused_with_the_expected_message() {
    trybuild::TestCases::new().compile_fail("fail/*.rs");
}
