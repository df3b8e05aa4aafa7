//! A queue's stored shard count, and the shard of a job.

use std::fmt;

use crate::keys::crc16;

pub(crate) const MAX_SHARDS: u16 = 256;

/// Stored as `change/shards` in the field `layout` of the unsharded partition's `meta`. A queue
/// that never had shards has no such field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Grows by one with each change, even if it only reopens partitions.
    pub(crate) change: u64,
    pub(crate) shards: u16,
}

impl Layout {
    pub(crate) const UNSHARDED: Self = Self { change: 0, shards: 1 };

    /// `""` stands for no stored layout.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::UNSHARDED);
        }
        let (change, shards) = text.split_once('/')?;
        // The last number is refused because the next change needs one more.
        let change = change.parse().ok().filter(|change| *change < u64::MAX)?;
        let layout = Self { change, shards: shards.parse().ok()? };
        (1..=MAX_SHARDS).contains(&layout.shards).then_some(layout)
    }

    pub(crate) fn next(self, shards: u16) -> Self {
        Self { change: self.change + 1, shards }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.change {
            0 => Ok(()),
            change => write!(f, "{change}/{}", self.shards),
        }
    }
}

/// CRC-16 as in Redis Cluster, modulo the shard count. Stored jobs depend on this function: it
/// never changes.
pub(crate) fn shard_of(key_or_id: &[u8], shards: u16) -> u16 {
    crc16(key_or_id) % shards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_read_as_they_are_written() {
        let changed_twice = Layout::UNSHARDED.next(4).next(2);
        assert_eq!(changed_twice.to_string(), "2/2");
        for layout in [Layout::UNSHARDED, changed_twice, Layout::UNSHARDED.next(256)] {
            assert_eq!(Layout::parse(&layout.to_string()), Some(layout));
        }
        for malformed in ["1", "1/", "/1", "1/0", "1/257", "1:4", "x/1", "1/-1", "1/2/3"] {
            assert_eq!(Layout::parse(malformed), None, "{malformed}");
        }
        dq_testkit::fuzz::check_text("layouts of shards", &["7/16", "0/1"], |text| {
            Layout::parse(text).map(|layout| layout.next(16)).is_some()
        });
    }

    #[test]
    fn shards_of_keys_never_change() {
        assert_eq!(shard_of(b"123456789", 256), 0xc3);
        let shards = |key: &str| [2, 4, 7, 256].map(|shards| shard_of(key.as_bytes(), shards));
        assert_eq!(shards("order-1001"), [1, 3, 5, 127]);
        assert_eq!(shards("a"), [1, 3, 1, 135]);
        assert_eq!(shards("订单"), [1, 1, 1, 177]);
    }
}
