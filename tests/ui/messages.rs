//! Programs that must compile, and compiler messages for programs that must not.
//!
//! After changing a message, run `TRYBUILD=overwrite cargo test -p dq-ui-tests` and read the diff.

#[test]
fn valid_programs_compile() {
    trybuild::TestCases::new().pass("pass/*.rs");
}

#[test]
fn invalid_programs_are_refused_with_the_expected_message() {
    trybuild::TestCases::new().compile_fail("fail/*.rs");
}
