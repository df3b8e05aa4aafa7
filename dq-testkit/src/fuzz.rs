//! Random and mutated input for decoders that read foreign bytes.
//!
//! [`check`] feeds a decoder random bytes and mutated valid inputs: bits flip, parts move, repeat
//! or vanish, and lengths become huge. The decoder must return a value or an error. It must not
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
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

const CASES: &str = "DQ_FUZZ_CASES";
const SEED: &str = "DQ_FUZZ_SEED";
const DEFAULT_CASES: u32 = 256;

/// Decoders are known to take these for lengths.
const HUGE: [u64; 6] =
    [u32::MAX as u64, i32::MAX as u64, 1 << 32, i64::MAX as u64, u64::MAX, 0x10_0000];

/// Positions are relative to the input's length.
#[derive(Debug, Clone)]
enum Mutation {
    Set(Index, u8),
    FlipBit(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    /// Position, part length, repetitions.
    Repeat(Index, usize, usize),
    Truncate(Index),
    /// Overwrites the bytes at a position with a number.
    Number(Index, u64, Encoding),
    /// Continues with another valid input, from the second position on.
    Splice(Index, Index, Index),
}

#[derive(Debug, Clone, Copy)]
enum Encoding {
    Big4,
    Little4,
    Big8,
    Little8,
    Varint,
    Text,
}

#[derive(Debug, Clone)]
enum Input {
    Mutated(Index, Vec<Mutation>),
    Random(Vec<u8>),
}

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
    let checked = runner.run(&input(), |input| {
        let bytes = input.bytes(&valid);
        last.keep(&bytes);
        decode(&bytes);
        Ok(())
    });
    if let Err(TestError::Fail(reason, input)) = &checked {
        let bytes = input.bytes(&valid);
        panic!("{name}: {reason}\n{input:?}\nbytes: {bytes:?}\ntext: {}", bytes.escape_ascii());
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

fn input() -> impl Strategy<Value = Input> {
    let random = vec(any::<u8>(), 0..300).prop_map(Input::Random);
    let mutated = (any::<Index>(), vec(mutation(), 1..6));
    prop_oneof![1 => random, 6 => mutated.prop_map(|(of, changes)| Input::Mutated(of, changes))]
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<Index>;
    let number = prop_oneof![
        3 => prop::sample::select(&HUGE[..]),
        1 => any::<u64>(),
        1 => 0..300_u64,
    ];
    let encoding = prop::sample::select(
        &[
            Encoding::Big4,
            Encoding::Little4,
            Encoding::Big8,
            Encoding::Little8,
            Encoding::Varint,
            Encoding::Text,
        ][..],
    );
    prop_oneof![
        4 => (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        3 => (at(), 0..8_u8).prop_map(|(at, bit)| Mutation::FlipBit(at, bit)),
        2 => (at(), vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        2 => (at(), 1..20_usize).prop_map(|(at, length)| Mutation::Remove(at, length)),
        1 => (at(), 1..9_usize, prop_oneof![4 => 1..5_usize, 1 => 200..4_000_usize])
            .prop_map(|(at, length, times)| Mutation::Repeat(at, length, times)),
        1 => at().prop_map(Mutation::Truncate),
        3 => (at(), number, encoding).prop_map(|(at, n, as_)| Mutation::Number(at, n, as_)),
        1 => (at(), at(), at()).prop_map(|(at, of, from)| Mutation::Splice(at, of, from)),
    ]
}

impl Input {
    fn bytes(&self, valid: &[&[u8]]) -> Vec<u8> {
        match self {
            Self::Random(bytes) => bytes.clone(),
            Self::Mutated(_, _) if valid.is_empty() => Vec::new(),
            Self::Mutated(of, mutations) => {
                let mut bytes = of.get(valid).to_vec();
                for mutation in mutations {
                    mutation.apply(&mut bytes, valid);
                }
                bytes
            }
        }
    }
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>, valid: &[&[u8]]) {
        let position = |at: &Index, bytes: &[u8]| at.index(bytes.len() + 1);
        let (at, replaced, new) = match self {
            Self::Set(at, byte) => (position(at, bytes), 1, vec![*byte]),
            Self::FlipBit(at, bit) => {
                let at = position(at, bytes);
                (at, 1, bytes.get(at).map(|byte| byte ^ (1 << bit)).into_iter().collect())
            }
            Self::Insert(at, new) => (position(at, bytes), 0, new.clone()),
            Self::Remove(at, length) => (position(at, bytes), *length, Vec::new()),
            Self::Repeat(at, length, times) => {
                let at = position(at, bytes);
                let part = &bytes[at..bytes.len().min(at + length)];
                (at, 0, part.repeat(*times))
            }
            Self::Truncate(at) => (position(at, bytes), usize::MAX, Vec::new()),
            Self::Number(at, number, encoding) => {
                let number = encoding.write(*number);
                (position(at, bytes), number.len(), number)
            }
            Self::Splice(at, of, from) => {
                let other = of.get(valid);
                (position(at, bytes), usize::MAX, other[position(from, other)..].to_vec())
            }
        };
        let end = bytes.len().min(at.saturating_add(replaced));
        bytes.splice(at..end, new);
    }
}

impl Encoding {
    fn write(self, number: u64) -> Vec<u8> {
        match self {
            Self::Big4 => (number as u32).to_be_bytes().to_vec(),
            Self::Little4 => (number as u32).to_le_bytes().to_vec(),
            Self::Big8 => number.to_be_bytes().to_vec(),
            Self::Little8 => number.to_le_bytes().to_vec(),
            Self::Text => number.to_string().into_bytes(),
            Self::Varint => {
                let (mut rest, mut bytes) = (number, Vec::new());
                while rest >= 0x80 {
                    bytes.push(rest as u8 | 0x80);
                    rest >>= 7;
                }
                bytes.push(rest as u8);
                bytes
            }
        }
    }
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

    /// Without the file, only the message is worse.
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

    /// The panic message.
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
