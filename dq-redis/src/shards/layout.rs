//! How a queue is spread over shards, now and ever before.
//!
//! Written as text, `epoch mode count,count,…`: the epoch is a number that grows with each change,
//! the mode `:` or, while dead jobs are replayed, `!`. The counts are all numbers of shards that the
//! queue ever had, that of now last. A queue that never had shards has no layout, and its text is
//! empty.

use std::fmt;

use crate::keys::crc16;

/// Most shards of a queue.
pub(crate) const MOST: u16 = 256;

/// How a queue is spread over shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    epoch: u64,
    /// Dead jobs are being replayed: nobody else creates jobs meanwhile.
    pub(crate) replaying: bool,
    /// Without repetition; never empty.
    counts: Vec<u16>,
}

impl Layout {
    /// That of a queue that never had shards.
    pub(crate) fn single() -> Self {
        Self { epoch: 0, replaying: false, counts: vec![1] }
    }

    /// Reads what a shard holds; `None` if it is no layout.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::single());
        }
        let at = text.find([':', '!'])?;
        let counts: Vec<u16> =
            text[at + 1..].split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
        let sound = counts.iter().all(|count| (1..=MOST).contains(count));
        let epoch = text[..at].parse().ok()?;
        sound.then_some(Self { epoch, replaying: text.as_bytes()[at] == b'!', counts })
    }

    /// Whether it came after the other.
    pub(crate) fn is_newer(&self, other: &Self) -> bool {
        self.epoch > other.epoch
    }

    /// How many shards new jobs are spread over.
    pub(crate) fn current(&self) -> u16 {
        self.counts[self.counts.len() - 1]
    }

    /// How many shards may hold jobs.
    pub(crate) fn width(&self) -> u16 {
        self.counts.iter().copied().max().unwrap_or(1)
    }

    /// Whether a name may have more than one home.
    pub(crate) fn is_mixed(&self) -> bool {
        self.counts.len() > 1
    }

    /// The shard in which a new job of this name is put.
    pub(crate) fn home(&self, name: &[u8]) -> u16 {
        place(name, self.current())
    }

    /// The other shards in which there may be a job of this name, from older layouts.
    pub(crate) fn former_homes(&self, name: &[u8]) -> Vec<u16> {
        let home = self.home(name);
        let mut homes: Vec<u16> = self.counts.iter().map(|count| place(name, *count)).collect();
        homes.sort_unstable();
        homes.dedup();
        homes.retain(|shard| *shard != home);
        homes
    }

    /// The layout that comes next, with this many shards.
    pub(crate) fn resized(&self, count: u16) -> Self {
        let mut counts = self.counts.clone();
        counts.retain(|known| *known != count);
        counts.push(count);
        Self { epoch: self.epoch + 1, replaying: false, counts }
    }

    /// The first layout of a queue that never had a job.
    pub(crate) fn fresh(count: u16) -> Self {
        Self { epoch: 1, replaying: false, counts: vec![count] }
    }

    /// The layout that comes next, with the same shards.
    pub(crate) fn succeeded(&self, replaying: bool) -> Self {
        Self { epoch: self.epoch + 1, replaying, counts: self.counts.clone() }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.epoch == 0 {
            return Ok(());
        }
        write!(f, "{}{}", self.epoch, if self.replaying { '!' } else { ':' })?;
        for (n, count) in self.counts.iter().enumerate() {
            write!(f, "{}{count}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// The shard of a name among so many: its CRC-16 as Redis Cluster computes it, modulo their number.
/// It is part of what is stored, so it is the same in every version and on every machine.
fn place(name: &[u8], count: u16) -> u16 {
    crc16(name) % count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_never_change() {
        // What was stored by one version is looked for by another.
        assert_eq!(place(b"123456789", 256), 0xc3);
        let names = ["order-1001", "order-1002", "a", "订单"];
        let places = names.map(|name| [1, 2, 4, 7, 256].map(|count| place(name.as_bytes(), count)));
        assert_eq!(
            places,
            [[0, 1, 3, 5, 127], [0, 0, 0, 3, 28], [0, 1, 3, 1, 135], [0, 1, 1, 1, 177]]
        );
    }

    #[test]
    fn names_spread_evenly() {
        for count in [2, 3, 4, 16, 256] {
            let mut filled = vec![0_u32; count.into()];
            for n in 0..u32::from(count) * 400 {
                filled[usize::from(place(format!("order-{n}").as_bytes(), count))] += 1;
            }
            assert!(filled.iter().all(|jobs| (280..520).contains(jobs)), "{filled:?}");
        }
    }

    #[test]
    fn layouts_are_read_as_they_are_written() {
        let grown = Layout::single().resized(4).resized(2).resized(4);
        assert_eq!(grown.to_string(), "3:1,2,4");
        let replaying = grown.succeeded(true);
        assert_eq!(replaying.to_string(), "4!1,2,4");
        for layout in [Layout::single(), Layout::fresh(256), grown, replaying] {
            assert_eq!(Layout::parse(&layout.to_string()), Some(layout));
        }
        for wrong in ["1", "1:", ":1", "1:0", "1:257", "1:1,", "x:1", "1:-1"] {
            assert_eq!(Layout::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn homes_are_those_of_all_counts_ever_used() {
        let layout = Layout::single().resized(4).resized(3);
        assert_eq!((layout.current(), layout.width()), (3, 4));
        for n in 0..100 {
            let name = format!("k{n}");
            let hash = crc16(name.as_bytes());
            let mut homes = layout.former_homes(name.as_bytes());
            assert_eq!(layout.home(name.as_bytes()), hash % 3);
            assert!(!homes.contains(&(hash % 3)));
            homes.push(hash % 3);
            for wanted in [0, hash % 4] {
                assert!(homes.contains(&wanted));
            }
        }
        assert!(Layout::fresh(4).former_homes(b"k").is_empty());
    }
}
