//! Generations of the log: their numbers, and offsets that go on from one to the next.

pub(super) mod compaction;
pub(super) mod directory;
pub(super) mod retention;

use serde::{Deserialize, Serialize};

/// The broker numbers a stream's messages from 0. A log offset has that number in these bits, and
/// the generation above them.
const OFFSET_BITS: u32 = 36;
/// A replacement's number is about this much larger, so that changes under way do not reach it.
const REPLACEMENT_DISTANCE: u32 = 1_000;

/// A stream's number. After a loss the log may use a number again. Below
/// [`DirectoryView::oldest`], the stream may be deleted, or declared again by a process that was
/// suspended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Generation(u32);

impl Generation {
    pub(crate) const FIRST: Self = Self(0);

    #[cfg(test)]
    pub(crate) const fn new(number: u32) -> Self {
        Self(number)
    }

    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    /// Even numbers begin empty; odd ones begin with a snapshot of the closed generation.
    pub(crate) const fn begins_empty(self) -> bool {
        self.0.is_multiple_of(2)
    }

    pub(crate) const fn next(self) -> Self {
        Self((self.0 + 1) | 1)
    }

    pub(crate) const fn replacement(self) -> Self {
        Self((self.0 + REPLACEMENT_DISTANCE) & !1)
    }

    pub(crate) const fn back(self, numbers: u32) -> Self {
        Self(self.0.saturating_sub(numbers))
    }

    /// Earlier numbers that may still have a stream.
    pub(crate) fn before(self) -> impl DoubleEndedIterator<Item = Self> {
        // Every second number is used, so that is twelve generations: more than a change keeps,
        // even if earlier changes crashed before their deletions.
        const SWEPT: u32 = 24;
        (self.back(SWEPT).0..self.0).map(Self)
    }

    /// The log offset of a message in this generation's stream.
    pub(crate) const fn offset(self, in_stream: u64) -> u64 {
        (self.0 as u64) << OFFSET_BITS | in_stream
    }

    pub(crate) const fn of(offset: u64) -> Self {
        Self((offset >> OFFSET_BITS) as u32)
    }

    pub(crate) const fn offset_in_stream(offset: u64) -> u64 {
        offset & ((1 << OFFSET_BITS) - 1)
    }
}

/// What a process has read in the directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DirectoryView {
    pub(crate) newest: Option<Generation>,
    /// The directory offset of the last record that names the newest generation.
    pub(crate) newest_record_offset: u64,
    /// No stream from here on was deleted. Never after the newest.
    pub(crate) oldest: Generation,
    /// `None` before the first record.
    pub(crate) last: Option<SeenRecord>,
    /// The broker had deleted records before the first one read.
    pub(crate) is_cut_off: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SeenRecord {
    pub(crate) record_offset: u64,
    /// The record's random number, by which its writer finds it. Another one at a known offset
    /// shows that the directory was deleted and begun again.
    pub(crate) nonce: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RecordKind {
    /// Says nothing. Its writer reads up to it.
    Probe,
    /// This generation is complete or begins empty. Repeats `oldest`, because the broker deletes
    /// old records.
    Newest { number: u32, oldest: u32 },
    /// The generation that the record at directory offset `named_at` names is lost, and the log
    /// goes on in the earlier `before`. No effect if another record has named a generation since,
    /// or if `before` may be deleted.
    Lost { named_at: u64, before: u32 },
    /// Earlier generations may be deleted from now on. No effect after the newest.
    Oldest(u32),
}

impl DirectoryView {
    pub(crate) fn observe(&mut self, record: SeenRecord, kind: RecordKind) {
        self.last = Some(record);
        match kind {
            RecordKind::Newest { number, oldest } => {
                if Some(Generation(number)) >= self.newest {
                    self.name(Generation(number), record);
                }
                self.raise_oldest(Generation(oldest));
            }
            RecordKind::Lost { named_at, before } => {
                let is_current = self.newest.is_some() && self.newest_record_offset == named_at;
                if is_current && Generation(before) >= self.oldest {
                    self.name(Generation(before), record);
                }
            }
            RecordKind::Oldest(number) => self.raise_oldest(Generation(number)),
            RecordKind::Probe => {}
        }
    }

    fn name(&mut self, newest: Generation, record: SeenRecord) {
        (self.newest, self.newest_record_offset) = (Some(newest), record.record_offset);
    }

    fn raise_oldest(&mut self, oldest: Generation) {
        if self.newest >= Some(oldest) {
            self.oldest = self.oldest.max(oldest);
        }
    }

    /// Whether the generation's stream may have been deleted. A stream with its name may then be
    /// another one.
    pub(crate) fn may_be_deleted(&self, generation: Generation) -> bool {
        generation < self.oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(kinds: &[RecordKind]) -> DirectoryView {
        let mut view = DirectoryView::default();
        for (record_offset, kind) in (0..).zip(kinds) {
            view.observe(SeenRecord { record_offset, nonce: 7 + record_offset }, *kind);
        }
        view
    }

    const fn newest(number: u32) -> RecordKind {
        RecordKind::Newest { number, oldest: 0 }
    }

    #[test]
    fn the_newest_generation_has_the_greatest_number_unless_it_is_lost() {
        use RecordKind::Probe;
        let lost = |named_at| RecordKind::Lost { named_at, before: 1 };
        for (kinds, expected) in [
            (&[Probe, newest(0), newest(3), newest(1), Probe][..], Some((3, 2))),
            (&[newest(3), lost(0)], Some((1, 1))),
            (&[newest(3), newest(3), lost(0)], Some((3, 1))),
            (&[newest(3), newest(5), lost(0)], Some((5, 1))),
            (&[newest(3), lost(0), lost(0)], Some((1, 1))),
            (&[newest(3), lost(0), newest(3), lost(0)], Some((3, 2))),
            (&[lost(0)], None),
        ] {
            let view = view(kinds);
            let named = view.newest.map(|newest| (newest.number(), view.newest_record_offset));
            assert_eq!(named, expected, "{kinds:?}");
            let last = kinds.len() as u64 - 1;
            assert_eq!(view.last, Some(SeenRecord { record_offset: last, nonce: 7 + last }));
        }
    }

    #[test]
    fn a_generation_is_deleted_or_the_log_goes_back_to_it_but_not_both() {
        use RecordKind::{Lost, Newest, Oldest};
        for (kinds, expected) in [
            (&[newest(5), Oldest(3)][..], (5, 3)),
            (&[newest(5), Oldest(3), Oldest(1)], (5, 3)),
            (&[newest(5), Oldest(3), newest(7)], (7, 3)),
            (&[newest(5), Oldest(7)], (5, 0)),
            (&[newest(5), Lost { named_at: 0, before: 3 }, Oldest(5)], (3, 0)),
            (&[newest(5), Lost { named_at: 0, before: 3 }, Oldest(3)], (3, 3)),
            (&[newest(5), Oldest(5), Lost { named_at: 0, before: 3 }], (5, 5)),
            (&[newest(5), Oldest(3), Lost { named_at: 0, before: 3 }], (3, 3)),
            (&[Oldest(3), Newest { number: 5, oldest: 3 }], (5, 3)),
            (&[newest(5), Newest { number: 1_004, oldest: 1_004 }], (1_004, 1_004)),
        ] {
            let view = view(kinds);
            let (newest, oldest) = (view.newest.unwrap(), view.oldest);
            assert_eq!((newest.number(), oldest.number()), expected, "{kinds:?}");
            assert!(!view.may_be_deleted(oldest) && !view.may_be_deleted(newest));
            assert!(oldest.before().all(|before| view.may_be_deleted(before)));
        }
    }

    #[test]
    fn numbers_grow_and_tell_which_generations_begin_empty() {
        for number in [0, 1, 3, 1_000, 1_001] {
            let generation = Generation::new(number);
            let (next, replacement) = (generation.next(), generation.replacement());
            assert!(next > generation && !next.begins_empty(), "{number}");
            assert!(replacement > next.next().next() && replacement.begins_empty(), "{number}");
        }
        assert!(Generation::FIRST.begins_empty());
    }

    #[test]
    fn offsets_go_on_over_generations() {
        let generation = Generation::new(3);
        let last = generation.offset((1 << OFFSET_BITS) - 1);
        assert_eq!(last + 1, Generation::new(4).offset(0));
        assert_eq!(Generation::of(last), generation);
        assert_eq!(Generation::offset_in_stream(generation.offset(17)), 17);
        assert_eq!(Generation::FIRST.offset(17), 17);
    }
}
