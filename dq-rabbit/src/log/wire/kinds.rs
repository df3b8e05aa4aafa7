//! Each command's number in the log, and its body's form.
//!
//! **Numbers and bodies are the format** and never change. A command with other fields gets a new
//! kind, which older processes must understand or may skip.

use super::entry::Command;
use super::size::encoded_size;

/// Kinds that a process may skip. A kind may be added only if replicas decide about jobs without
/// it; the used capacity counts, too. Announcements are safe, because every version of this format
/// knows them.
const OPTIONAL: [u16; 1] = [ANNOUNCE];
const ANNOUNCE: u16 = 12;

macro_rules! kinds {
    ($($kind:literal => $variant:ident $(($($field:ident),+))?;)+) => {
        impl Command {
            pub(super) fn kind(&self) -> u16 {
                match self {
                    $(Self::$variant { .. } => $kind,)+
                    Self::Unknown { kind, .. } => *kind,
                }
            }

            pub(super) fn encode_body(&self) -> Vec<u8> {
                let encoded = match self {
                    $(Self::$variant $(($($field),+))? => postcard::to_allocvec(&($($($field,)+)?)),)+
                    Self::Unknown { body, .. } => return body.to_vec(),
                };
                encoded.expect("writing to memory cannot fail")
            }

            pub(super) fn body_size(&self) -> usize {
                match self {
                    $(Self::$variant $(($($field),+))? => encoded_size(&($($($field,)+)?)) as usize,)+
                    Self::Unknown { body, .. } => body.len(),
                }
            }

            /// `None` if this version does not know the body.
            pub(super) fn decode_body(kind: u16, body: &[u8]) -> Option<Self> {
                match kind {
                    $($kind => {
                        let (($($($field,)+)?), rest) = postcard::take_from_bytes(body).ok()?;
                        rest.is_empty().then_some(Self::$variant $(($($field),+))?)
                    })+
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    0 => Barrier;
    1 => Schedule(jobs);
    2 => Cancel(jobs);
    3 => Reschedule(moves);
    4 => Claim(claim);
    5 => Settle(settlements);
    6 => Renew(renewals);
    7 => EndLeases(leases);
    8 => Operate(queue, operation);
    9 => Park(parked);
    10 => SetHistory(limits);
    11 => SetCapacity(bytes);
    12 => Announce(announcement);
    13 => Close(generation);
    14 => Snapshot(entry);
    15 => ClaimLimited(claim, starting);
}

impl Command {
    pub(super) fn must_understand(&self) -> bool {
        !OPTIONAL.contains(&self.kind()) && !matches!(self, Self::Unknown { .. })
    }
}
