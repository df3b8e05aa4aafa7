//! What the macros accept, and what they say to what they do not.
//!
//! After a change of a message: `TRYBUILD=overwrite cargo test --test ui`, then read the diff.

#[test]
fn accepted() {
    trybuild::TestCases::new().pass("tests/ui/pass/*.rs");
}

#[test]
fn refused() {
    trybuild::TestCases::new().compile_fail("tests/ui/fail/*.rs");
}
