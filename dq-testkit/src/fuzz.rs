//! Random and mutated input for decoders that read foreign bytes.
//!
//! [`check`] feeds a decoder random bytes and mutated valid inputs: parts change, repeat or vanish,
//! and lengths become huge. The decoder must return a value or an error. It must not
//! panic, and must not allocate memory because a length in the input claims it. Failing input is
//! shrunk.
//!
//! `DQ_FUZZ_CASES` sets the inputs per decoder (256 by default, for CI), `DQ_FUZZ_SEED` the seed (0
//! by default). Equal seeds give equal inputs.
//!
//! On Linux, `check` limits the process's address space, so an allocation of several GiB aborts the
//! test. The message names a file with the input.

use std::cell::Cell;
use std::env;
use std::fs::{self, File};
use std::io::{Seek, Write};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

const CASES: &str = "DQ_FUZZ_CASES";
const SEED: &str = "DQ_FUZZ_SEED";
const DEFAULT_CASES: u32 = 256;

/// Decoders are known to take these for lengths.
const HUGE: [u64; 6] =
    [u32::MAX as u64, i32::MAX as u64, 1 << 32, i64::MAX as u64, u64::MAX, 0x10_0000];

/// Feeds a decoder random bytes and mutations of `valid` inputs.
///
/// `name` appears in messages. `decode` returns whether it accepts the input.
///
/// # Panics
/// - If the decoder panics; the message has the shortest such input found.
/// - If it rejects a valid input, because mutations of it would test little.
/// - If `DQ_FUZZ_CASES` or `DQ_FUZZ_SEED` is malformed.
pub fn check(name: &str, valid: &[impl AsRef<[u8]>], decode: impl Fn(&[u8]) -> bool) {
    limit_address_space();
    let config = Config {
        cases: variable(CASES, DEFAULT_CASES),
        failure_persistence: None,
        ..Config::default()
    };
    let mut seed = [0; 32];
    seed[..4].copy_from_slice(&variable(SEED, 0_u32).to_le_bytes());
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let valid: Vec<&[u8]> = valid.iter().map(AsRef::as_ref).collect();
    for input in &valid {
        assert!(decode(input), "{name}: a valid input is refused: {}", input.escape_ascii());
    }
    let last = LastInput::new(name);
    let checked = runner.run(&input(&valid), |bytes| {
        last.keep(&bytes);
        decode(&bytes);
        Ok(())
    });
    if let Err(TestError::Fail(reason, bytes)) = &checked {
        panic!("{name}: {reason}\nbytes: {bytes:?}\ntext: {}", bytes.escape_ascii());
    }
    if let Err(error) = checked {
        panic!("{name}: {error}");
    }
    last.remove();
}

/// Checks a decoder of text; invalid UTF-8 is replaced.
pub fn check_text(name: &str, valid: &[&str], decode: impl Fn(&str) -> bool) {
    check(name, valid, |bytes| decode(&String::from_utf8_lossy(bytes)));
}

fn variable(name: &str, default: u32) -> u32 {
    match env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text:?}")),
        Err(_) => default,
    }
}

fn input(valid: &[&[u8]]) -> BoxedStrategy<Vec<u8>> {
    let random = vec(any::<u8>(), 0..300);
    if valid.is_empty() {
        return random.boxed();
    }
    let valid: Vec<Vec<u8>> = valid.iter().map(|input| input.to_vec()).collect();
    let mutated = (select(valid.clone()), vec(mutation(valid), 1..6));
    let mutated = mutated.prop_map(|(mut input, mutations)| {
        mutations.iter().for_each(|mutation| mutation.apply(&mut input));
        input
    });
    prop_oneof![1 => random, 6 => mutated].boxed()
}

#[derive(Debug, Clone)]
struct Mutation {
    position: Index,
    /// `None` for as many bytes as are inserted.
    removed: Option<usize>,
    inserted: Vec<u8>,
}

impl Mutation {
    fn apply(&self, input: &mut Vec<u8>) {
        let start = self.position.index(input.len() + 1);
        let removed = self.removed.unwrap_or(self.inserted.len());
        let end = input.len().min(start.saturating_add(removed));
        input.splice(start..end, self.inserted.iter().copied());
    }
}

fn mutation(valid: Vec<Vec<u8>>) -> impl Strategy<Value = Mutation> {
    let removed = prop_oneof![
        6 => Just(None),
        3 => Just(Some(0)),
        3 => (1..20_usize).prop_map(Some),
        1 => Just(Some(usize::MAX)),
    ];
    let inserted = prop_oneof![
        2 => Just(Vec::new()),
        6 => vec(any::<u8>(), 1..9),
        4 => number(),
        2 => part(valid),
    ];
    (any::<Index>(), removed, inserted).prop_map(|(position, removed, inserted)| Mutation {
        position,
        removed,
        inserted,
    })
}

fn part(valid: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let times = prop_oneof![4 => 1..5_usize, 1 => 200..4_000_usize];
    (select(valid), any::<Index>(), 1..9_usize, times).prop_map(|(input, start, length, times)| {
        let start = start.index(input.len() + 1);
        let end = input.len().min(start + length);
        input[start..end].repeat(times)
    })
}

fn number() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![3 => select(&HUGE[..]), 1 => any::<u64>(), 1 => 0..300_u64];
    let encodings: [fn(u64) -> Vec<u8>; 6] = [
        |number| (number as u32).to_be_bytes().to_vec(),
        |number| (number as u32).to_le_bytes().to_vec(),
        |number| number.to_be_bytes().to_vec(),
        |number| number.to_le_bytes().to_vec(),
        |number| number.to_string().into_bytes(),
        varint,
    ];
    (number, select(encodings.to_vec())).prop_map(|(number, encode)| encode(number))
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Keeps the current input for decoders that end the process.
struct LastInput {
    path: std::path::PathBuf,
    file: Cell<Option<File>>,
}

impl LastInput {
    fn new(name: &str) -> Self {
        let file_name = format!("dq-fuzz-{}-{}", std::process::id(), name.replace(['/', ' '], "-"));
        let path = env::temp_dir().join(file_name);
        let file = File::create(&path).ok();
        eprintln!("{name}: the input at a crash of the process is in {}", path.display());
        Self { path, file: Cell::new(file) }
    }

    fn keep(&self, bytes: &[u8]) {
        let Some(mut file) = self.file.take() else { return };
        let written = file.rewind().and_then(|()| file.write_all(bytes));
        if written.and_then(|()| file.set_len(bytes.len() as u64)).is_ok() {
            self.file.set(Some(file));
        }
    }

    fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Far more than any decoder needs, but less than a 32-bit length can claim.
#[cfg(target_os = "linux")]
const SPARE_BYTES: u64 = 3 << 30;

/// Also applies to future children.
#[cfg(target_os = "linux")]
fn limit_address_space() {
    use std::sync::Once;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let pages = fs::read_to_string("/proc/self/statm").expect("the size of this process");
        let pages = pages.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
        let used = pages.expect("a number of pages") * rustix::param::page_size() as u64;
        let maximum = getrlimit(Resource::As).maximum;
        let current = Some(maximum.unwrap_or(u64::MAX).min(used + SPARE_BYTES));
        setrlimit(Resource::As, Rlimit { current, maximum }).expect("a lower limit is allowed");
    });
}

#[cfg(not(target_os = "linux"))]
fn limit_address_space() {}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn found(valid: &[&[u8]], decode: impl Fn(&[u8]) -> bool) -> String {
        let checked = catch_unwind(AssertUnwindSafe(|| check("a decoder", valid, decode)));
        *checked.expect_err("the defect is found").downcast::<String>().expect("a message")
    }

    #[test]
    fn a_decoder_that_trusts_a_length_is_found() {
        let message = found(&[b"\x00\x03abc"], |bytes| {
            let Some((length, rest)) = bytes.split_first_chunk::<2>() else { return false };
            let _text = &rest[..usize::from(u16::from_be_bytes(*length))];
            true
        });
        assert!(message.contains("out of range"), "{message}");
    }

    #[test]
    fn valid_input_that_is_refused_is_found() {
        let message = found(&[b"valid", b"VALID"], |bytes| bytes == b"valid");
        assert!(message.contains("a valid input is refused: VALID"), "{message}");
    }
}
