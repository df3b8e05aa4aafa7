//! The compiler's messages for programs that must not compile. Those in `pass` must: each is a test
//! of this package.
//!
//! After changing a message, run `TRYBUILD=overwrite cargo test -p dq-ui-tests` and read the diff.

#[test]
fn valid_programs_are_tests_of_this_package() {
    for program in std::fs::read_dir("pass").unwrap() {
        let path = program.unwrap().path();
        let line = format!("path = \"{}\"", path.display());
        assert!(include_str!("Cargo.toml").contains(&line), "Cargo.toml lacks {line}");
    }
}

#[test]
fn invalid_programs_are_refused_with_the_expected_message() {
    trybuild::TestCases::new().compile_fail("fail/*.rs");
}
