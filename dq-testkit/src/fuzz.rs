//! Random and mutated input for decoders of bytes that others write.
//!
//! [`check`] feeds a decoder with random bytes and with mutations of valid inputs: bits flipped,
//! parts removed, repeated and exchanged, lengths replaced by huge ones. The decoder must return,
//! with a value or an error; it must not panic, and must not allocate what only a length in the
//! input claims. Input that makes it panic is shrunk before it is reported.
//!
//! `DQ_FUZZ_CASES` sets the number of inputs per decoder (by default 256, for CI), `DQ_FUZZ_SEED` the
//! seed (by default 0). Equal seeds give equal inputs.
//!
//! On Linux the address space of the process is limited, so that an allocation of some GiB aborts the
//! test. The input that caused it is in the file that the message names.

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

/// Numbers that decoders have been known to take for lengths.
const HUGE: [u64; 6] =
    [u32::MAX as u64, i32::MAX as u64, 1 << 32, i64::MAX as u64, u64::MAX, 0x10_0000];

/// A change of an input. Positions are relative to its length.
#[derive(Debug, Clone)]
enum Mutation {
    Set(Index, u8),
    FlipBit(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    /// Repeats a part this many times.
    Repeat(Index, usize, usize),
    Truncate(Index),
    /// Overwrites what follows with a number.
    Number(Index, u64, Encoding),
    /// Continues with another valid input, from its second position on.
    Splice(Index, Index, Index),
}

/// How a number is written.
#[derive(Debug, Clone, Copy)]
enum Encoding {
    Big4,
    Little4,
    Big8,
    Little8,
    Varint,
    Text,
}

/// An input: a valid one and its mutations, or random bytes.
#[derive(Debug, Clone)]
enum Input {
    Mutated(Index, Vec<Mutation>),
    Random(Vec<u8>),
}

/// Feeds a decoder with random bytes and mutations of these valid inputs. `name` is that of the
/// decoder, in messages. `decode` returns whether it accepts the input.
///
/// # Panics
/// If the decoder panics, with the shortest input found that makes it; if it refuses a valid input,
/// whose mutations would reach little of it; or if a variable of the environment is malformed.
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

/// As [`check`], for decoders of text: what is not UTF-8 is replaced.
pub fn check_text(name: &str, valid: &[&str], decode: impl Fn(&str) -> bool) {
    check(name, valid, |bytes| decode(&String::from_utf8_lossy(bytes)));
}

/// The value of a variable of the environment.
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

/// A file with the input that is being decoded, for decoders that end the process.
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

    /// Without the file, the test is as good, only its message is not.
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

/// Far more than any decoder needs, and less than a length of 32 bits can claim.
#[cfg(target_os = "linux")]
const SPARE_BYTES: u64 = 3 << 30;

/// Makes huge allocations fail in this process, and in the children that it starts from now on.
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

    /// The message of the panic of `check` with this decoder.
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
    fn input_that_nests_deeply_is_tried() {
        let message = found(&[b"[[1]]"], |bytes| {
            let depth = bytes.iter().take_while(|byte| **byte == b'[').count();
            assert!(depth < 100, "too deep");
            true
        });
        assert!(message.contains("too deep"), "{message}");
    }

    #[test]
    fn valid_input_that_is_refused_is_found() {
        let message = found(&[b"valid", b"VALID"], |bytes| bytes == b"valid");
        assert!(message.contains("a valid input is refused: VALID"), "{message}");
    }

    #[test]
    fn equal_seeds_give_equal_inputs() {
        let inputs = || {
            let inputs = std::cell::RefCell::new(Vec::new());
            check("nothing", &[b"valid"], |bytes| {
                inputs.borrow_mut().push(bytes.to_vec());
                true
            });
            inputs.into_inner()
        };
        assert_eq!(inputs(), inputs());
    }
}
