//! Handles: the short form of job ids under which Redis keeps jobs.
//!
//! Redis allocates 16 bytes for a member or field of up to 14 bytes, and 32 for 15 to 29. A job id
//! has 16 bytes and occurs as both, so a handle has 14: the id's first 14 bytes, with the last two
//! XORed with the id's last two bytes, its *tail*. The record holds the tail.
//!
//! The handle keeps an id's first 8 bytes, with time and counter: one producer's handles are
//! distinct and in id order. Two producers' ids with the same time and counter have equal handles
//! with a probability of 2⁻⁴⁶. The tails in the records tell such ids apart, and scheduling the
//! second into the same partition is an error.
//!
//! One exception: the Redisson layout uses the handle only from a job's first lease on. If two jobs
//! with one handle wait there, and were not scheduled by the same call, the one claimed last gets
//! another id, and keeps only its payload and due time.

use dq_core::JobId;

pub(crate) const HANDLE_BYTES: usize = 14;

pub(crate) fn handle(id: JobId) -> [u8; HANDLE_BYTES] {
    let bytes = id.to_bytes();
    let mut handle = [0; HANDLE_BYTES];
    handle.copy_from_slice(&bytes[..HANDLE_BYTES]);
    handle[12] ^= bytes[14];
    handle[13] ^= bytes[15];
    handle
}

pub(crate) fn tail(id: JobId) -> [u8; 2] {
    let bytes = id.to_bytes();
    [bytes[14], bytes[15]]
}

pub(crate) fn handle_and_tail(id: JobId) -> [u8; 16] {
    let mut both = [0; 16];
    both[..HANDLE_BYTES].copy_from_slice(&handle(id));
    both[HANDLE_BYTES..].copy_from_slice(&tail(id));
    both
}

/// `None` if handle or tail has another length.
pub(crate) fn id(handle: &[u8], tail: &[u8]) -> Option<JobId> {
    let handle: [u8; HANDLE_BYTES] = handle.try_into().ok()?;
    let tail: [u8; 2] = tail.try_into().ok()?;
    let mut bytes = [0; 16];
    bytes[..HANDLE_BYTES].copy_from_slice(&handle);
    bytes[12] ^= tail[0];
    bytes[13] ^= tail[1];
    bytes[14..].copy_from_slice(&tail);
    Some(JobId::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_differ_only_at_the_end_have_different_handles() {
        let handles: std::collections::HashSet<_> =
            (0..=0xffff_u128).map(|id| handle(JobId::from_bytes(id.to_be_bytes()))).collect();
        assert_eq!(handles.len(), 0x1_0000);
    }
}
