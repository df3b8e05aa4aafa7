//! The generations of the log, and the directory that names them.
//!
//! The log is a sequence of *generations*. Each is a stream without any limit of size or age. So
//! the broker never deletes anything that lives; this backend deletes a generation as a whole, when
//! nothing in it is needed any more. The *directory* is a small stream whose records name
//! generations: the newest, at which a process starts to read, and the oldest, before which they
//! may be deleted.
//!
//! # A change
//!
//! The *closer* is any process that finds generation N large enough ([`retention`](super::retention)).
//! It takes these steps; N' is [`Generation::next`] of N:
//!
//! 1. It *announces* N in the directory, unless it knows that N is there.
//! 2. It declares the stream of N', and makes sure that the directory does not name N' yet. Then it
//!    waits some seconds: a broker replies to a declaration before it is on its disk, and a node that
//!    is killed in between has no such stream afterwards.
//! 3. It appends the entry `Close(N)`. The first one that takes effect closes N. What follows in N has
//!    no effect for any replica, so the log goes on at the beginning of N', at the same position for
//!    all. When a process reads the close, it reads N' next, and writes into N' whatever it has sent
//!    and not read back.
//! 4. It writes a snapshot into N' ([`snapshot`](super::snapshot)), while all others go on to append.
//!    Replicas point jobs to the payloads in it.
//! 5. When the snapshot is complete, it announces N'.
//! 6. It deletes N after a grace time. If generations change more often than that, it deletes those
//!    that are several changes old. Before that, it *retires* them: a record in the directory names
//!    the oldest generation that is kept.
//!
//! Producer ids and sequence numbers go on over generations. An entry that took effect in N is a
//! duplicate in N', and what had no effect in N is the next one of its producer in N'.
//!
//! # What holds
//!
//! - A generation is retired only after a later one was announced, so the newest one that the
//!   directory names exists, and begins with a complete snapshot, or begins empty.
//! - Each generation from there on is found by reading: N ends with its close, or is the last one.
//! - Numbers only grow. A process may create a stream again that was deleted, if it was suspended
//!   between two of its steps, but no process applies anything of it: a process that begins to read a
//!   generation, or goes on in the middle of it, looks into the directory after the broker has
//!   accepted the consumer. If the generation is not retired then, no stream of it was deleted before,
//!   so the consumer reads the only one. If it is, the process starts at the newest one.
//! - A generation that begins empty has an even number, the others begin with a snapshot.
//!
//! # After a crash
//!
//! - Before 3: N is open. N' is empty, nobody reads it, and the next closer declares it again.
//! - Between 3 and 5: processes that run are in N'. One that starts reads N, its close, and N'. If N'
//!   gets no part of a snapshot for a while, another process writes one; the parts of the one that was
//!   begun are ignored. N' is not closed before it has a complete snapshot.
//! - Between 5 and 6, or before 5: the next closer announces and deletes what the last one has not.
//!
//! # Races
//!
//! - Two closers: the second close has no effect in N, and none in N', since it names N. Both begin a
//!   snapshot, and the second one gives up.
//! - A reader that is behind: at the close of N it has the whole state, so it goes on with that at the
//!   beginning of N', even if the directory names a later generation by then. It reads all
//!   generations in order, and its calls get their replies. Only if N' is retired does it forget the
//!   state and start at the newest one, since what it missed may be gone. Its calls that took effect
//!   in between get `OutcomeUnknown`, as after any replay; the others are written again.
//! - A generation is retired while the log goes back to it (see below): the first record has effect,
//!   and the other has none. So a process that retires generations reads the directory again before it
//!   deletes them.
//! - A writer that is behind: what it sends to N has no effect or is returned, and is written again
//!   when it has read the close.
//! - A snapshot writer that is behind may not find payloads in N, since another snapshot was completed
//!   and N deleted. It then finds N' in the directory, and gives up.
//!
//! # A generation that the broker does not find
//!
//! - It was read before: the process starts again with the directory.
//! - It follows a close: the closer may have crashed, or the broker has lost the declaration. It is
//!   declared, unless the directory names it or a later one.
//! - The directory names it, and it begins empty: it is declared, since the first processes of a prefix
//!   announce it before it exists.
//! - The directory names it, and the broker does not find it for half a minute, on other nodes too if
//!   there are several: it is lost. If the generation before it is still there and not retired, because
//!   a single node lost power within the grace time, a record says that the log goes on there. That
//!   generation ends with its close, so N' is declared again and gets another snapshot. If not, somebody
//!   has deleted it, and the log begins again in an empty generation with a greater number; runners store
//!   the jobs again whose messages wait in the ladder.
//! - The same record is written if the generation exists and its snapshot is not in it.
//! - What was read and is gone with the generation is told: see [`loss`](super::loss).
//!
//! A stream that is declared here is used at once, not some seconds later as in step 2: processes
//! that run write into it as soon as it is there. If its node is killed within these seconds, the
//! declaration is lost a second time, with what was written since, even if it was read and
//! answered. A process that had read some of it begins again with the directory, and writes again
//! what it had not read back.
//!
//! # A directory without its records
//!
//! The broker deletes old records, so each process that looks repeats the one that names the newest
//! generation after some hundred others. Should it be gone all the same, a process that runs writes
//! it again. A process that starts then, and finds that there were records before, fails with
//! `Config`: it must not begin an empty log beside the one that lives. If somebody deletes the
//! whole stream, such a process cannot know, and begins an empty log. The others go on in theirs,
//! and announce the next generation; the greatest number wins.
//!
//! To be sure of what the directory names, a process appends a record of its own and reads up to it. A
//! record that was confirmed before cannot come later in the stream.

use std::time::Duration;

use dq_core::{Error, ErrorKind, Result};
use futures_util::StreamExt;
use lapin::{BasicProperties, Confirmation, Consumer};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::shared::{LogShared, random_id};
use super::stream::{READ_OPERATION, StreamStart, consume, offset_of, read_error};
use crate::connect::AmqpChannel;
use crate::error::{LostReply, Permission, Refusal, from_use, refusal, unconfirmed_reason};
use crate::generation::{DirectoryView, Generation, RecordKind, SeenRecord};
use crate::names::DIRECTORY_KEY;

/// First bytes of a record, with the version of its format. The rest is encoded by `postcard` and
/// followed by the checksum of all before it.
const MAGIC: &[u8] = b"DQ\x01";
const CHECKSUM_BYTES: usize = 8;

/// Maximum number of unacknowledged records that the broker delivers.
const PREFETCH: u16 = 256;

/// The broker deletes old records. After this many others, the newest generation is announced again.
const REPEAT_AFTER: u64 = 200;

/// How long to wait before each further look at a generation that the broker does not find. In all,
/// longer than a node needs to start or to notice a partition.
const LOST_PAUSES: [Duration; 6] = [
    Duration::from_millis(200),
    Duration::from_millis(600),
    Duration::from_millis(2_000),
    Duration::from_millis(5_000),
    Duration::from_millis(10_000),
    Duration::from_millis(15_000),
];

/// A record of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    kind: RecordKind,
    /// Tells a record from others.
    nonce: u64,
}

impl Record {
    fn new(shared: &LogShared, kind: RecordKind) -> Self {
        Self { kind, nonce: random_id(&shared.entropy) }
    }

    fn encode(&self) -> Vec<u8> {
        let record = postcard::to_extend(self, MAGIC.to_vec());
        let mut record = record.expect("writing to memory cannot fail");
        let checksum = xxh3_64(&record);
        record.extend(checksum.to_le_bytes());
        record
    }

    /// `None` for a message that is no record.
    fn decode(message: &[u8]) -> Option<Self> {
        let (record, checksum) = message.split_last_chunk::<CHECKSUM_BYTES>()?;
        if xxh3_64(record) != u64::from_le_bytes(*checksum) {
            return None;
        }
        let (record, rest) = postcard::take_from_bytes(record.strip_prefix(MAGIC)?).ok()?;
        rest.is_empty().then_some(record)
    }
}

/// How a process came to a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The directory names it.
    Directory,
    /// It has read the close of the one before.
    Close,
    /// It has read messages of it.
    Read,
}

/// The newest generation in the directory. If there is none, announces the newest that this process
/// knows, or else the first one.
///
/// # Errors
/// `Config` if the directory has lost its records, and this process does not know where the log is.
pub(super) async fn locate(shared: &LogShared) -> Result<Generation> {
    let view = look(shared).await?;
    if let Some(newest) = view.newest {
        return Ok(newest);
    }
    let generation = match shared.state().newest_known() {
        Some(known) => known,
        // An empty log would begin beside the one that lives.
        None if view.is_cut_off => return Err(records_lost()),
        None => Generation::FIRST,
    };
    announce(shared, generation).await?;
    Ok(generation)
}

/// Names a generation, which must be complete or begin empty.
pub(super) async fn announce(shared: &LogShared, generation: Generation) -> Result<()> {
    // Nothing that lives is before one that begins empty.
    let oldest =
        if generation.begins_empty() { generation } else { shared.state().directory.oldest };
    let kind = RecordKind::Newest { number: generation.number(), oldest: oldest.number() };
    append(shared, Record::new(shared, kind)).await
}

/// Whether a stream of this generation may have been deleted before this call.
pub(super) async fn may_be_deleted(shared: &LogShared, generation: Generation) -> Result<bool> {
    Ok(look(shared).await?.may_be_deleted(generation))
}

/// Lets the generations before this one be deleted. `false` if they are needed, because the log has
/// gone back to one of them.
pub(super) async fn retire_before(shared: &LogShared, oldest: Generation) -> Result<bool> {
    if look(shared).await?.oldest >= oldest {
        return Ok(true);
    }
    append(shared, Record::new(shared, RecordKind::Oldest(oldest.number()))).await?;
    Ok(look(shared).await?.oldest >= oldest)
}

/// Reads what is new in the directory. Repeats the record of the newest generation before the broker
/// deletes it.
async fn look(shared: &LogShared) -> Result<DirectoryView> {
    let own = Record::new(shared, RecordKind::Probe);
    let known = shared.state().directory;
    // Before the record is appended: a process that may not read must not fill the directory.
    let records = match open(shared, &known).await? {
        Some(records) => records,
        None => {
            shared.declare_log().await?;
            open(shared, &known).await?.ok_or_else(missing)?
        }
    };
    append(shared, own).await?;
    let looking = async {
        match read_up_to(shared, records, known, own.nonce).await? {
            Some(read) => Ok(Some(read)),
            None => {
                let unread = DirectoryView::default();
                let records = open(shared, &unread).await?.ok_or_else(missing)?;
                read_up_to(shared, records, unread, own.nonce).await
            }
        }
    };
    let read = looking.await.and_then(|read| {
        read.ok_or_else(|| shared.timeout_error(READ_OPERATION, LostReply::Unavailable))
    });
    // After a failure, the next look begins at the beginning of the directory: the record from which it would
    // go on may be gone.
    {
        let mut state = shared.state();
        state.directory = *read.as_ref().unwrap_or(&DirectoryView::default());
        state.named = state.directory.newest.or(state.named);
    }
    if let Ok(DirectoryView { newest: Some(newest), newest_offset, last, .. }) = read
        && last.offset - newest_offset > REPEAT_AFTER
    {
        announce(shared, newest).await?;
    }
    read
}

/// Declares the generation after this one. `false` if a later one is in the directory, so that there
/// is nothing to close.
pub(super) async fn prepare_next(shared: &LogShared, generation: Generation) -> Result<bool> {
    // A node that is cut off from the others could declare a stream of its own, but not answer this.
    if locate(shared).await? > generation {
        if shared.state().directory.may_be_deleted(generation) {
            // The log goes on elsewhere, and the reader has not noticed.
            shared.reader_stuck.notify_one();
        }
        return Ok(false);
    }
    let next = generation.next();
    shared.topology.declare_generation(next).await?;
    let newest = locate(shared).await?;
    if newest > next && may_be_deleted(shared, next).await? {
        // If it was, this process has created it again.
        shared.topology.delete_generations([next]).await?;
    }
    Ok(newest <= generation)
}

/// Handles a generation that the broker does not find. Declares it if nothing can have been lost with it:
/// it follows a close, or the directory names it and it begins empty. One that the directory names and
/// that begins with a snapshot is looked for for half a minute; if it is lost, the log goes back to the
/// one before, or begins again empty. Returns whether reading can go on in this generation; if not, the
/// caller starts again with the directory.
pub(super) async fn restore(
    shared: &LogShared,
    generation: Generation,
    arrival: Arrival,
) -> Result<bool> {
    let newest = match arrival {
        Arrival::Read => return Ok(false),
        Arrival::Directory | Arrival::Close => locate(shared).await?,
    };
    let may_exist = match arrival {
        Arrival::Directory => newest == generation,
        _ => newest < generation,
    };
    if !may_exist {
        return Ok(false);
    }
    if newest == generation && !generation.begins_empty() {
        let is_lost = is_lost(shared, generation).await?;
        if is_lost && !fall_back(shared, generation).await? {
            replace(shared, generation).await?;
        }
        return Ok(!is_lost);
    }
    shared.topology.declare_generation(generation).await?;
    Ok(true)
}

/// Whether a generation that the broker does not find is gone for good.
pub(super) async fn is_gone(shared: &LogShared, generation: Generation) -> Result<bool> {
    Ok(may_be_deleted(shared, generation).await? || is_lost(shared, generation).await?)
}

/// Whether the broker does not find a generation for some time.
async fn is_lost(shared: &LogShared, generation: Generation) -> Result<bool> {
    for pause in LOST_PAUSES {
        shared.clock.sleep(pause).await;
        if shared.topology.has_generation(generation).await? {
            return Ok(false);
        }
        // The metadata of this node may be out of date.
        shared.switch_node();
    }
    Ok(true)
}

/// Makes the log go on where it was before this generation, which the broker has lost, or whose
/// snapshot it has lost. `false` if no generation before it is left.
pub(super) async fn fall_back(shared: &LogShared, lost: Generation) -> Result<bool> {
    let view = look(shared).await?;
    if view.newest != Some(lost) {
        return Ok(true);
    }
    let candidates = lost.before().rev().filter(|before| !view.may_be_deleted(*before));
    for before in candidates {
        if shared.topology.has_generation(before).await? {
            let kind = RecordKind::Lost { named_at: view.newest_offset, before: before.number() };
            append(shared, Record::new(shared, kind)).await?;
            shared.state().read_before.lose(lost);
            return Ok(true);
        }
    }
    Ok(false)
}

/// Begins an empty log after this generation was lost, unless it was deleted because a later one is
/// there.
async fn replace(shared: &LogShared, lost: Generation) -> Result<()> {
    if locate(shared).await? != lost {
        return Ok(());
    }
    announce(shared, lost.replacement()).await?;
    shared.state().read_before.lose(lost);
    Ok(())
}

/// Appends a record, and waits until the broker has it. Declares the directory if it is missing.
async fn append(shared: &LogShared, record: Record) -> Result<()> {
    if try_append(shared, record).await? {
        return Ok(());
    }
    shared.declare_log().await?;
    if try_append(shared, record).await? {
        return Ok(());
    }
    Err(missing())
}

fn missing() -> Error {
    Error::new(ErrorKind::Unavailable, "the directory of the log is missing")
        .remedy("check that the broker runs, and that nobody deletes its queues")
        .operation(READ_OPERATION)
}

/// The error for a directory in which no record names a generation, though it had others before.
fn records_lost() -> Error {
    Error::new(
        ErrorKind::Config,
        "the broker has deleted the records that say in which stream the log is",
    )
    .remedy(
        "remove the policy that limits the size or age of the stream `PREFIX.v1.log`. A process that \
         still runs restores the records; otherwise delete all streams of the log, and runners store \
         the jobs again whose messages wait in the ladder",
    )
    .operation(READ_OPERATION)
}

/// `false` if there is no stream or no exchange for the record.
async fn try_append(shared: &LogShared, record: Record) -> Result<bool> {
    let failed = |error: &lapin::Error| {
        from_use("write the log", Permission::Write, shared.publish.broker_info(), error)
    };
    let channel = shared.publish.channel("write the log").await?;
    let appending = async {
        channel.confirm_select().await?;
        let properties = BasicProperties::default().with_delivery_mode(2);
        let (exchange, key) = (shared.topology.names().generations(), DIRECTORY_KEY.into());
        let sent = channel.publish(exchange, key, true, &record.encode(), properties).await?;
        sent.received().await
    };
    let confirmed = match appending.await {
        Ok(confirmed) => confirmed,
        Err(error) if refusal(&error) == Refusal::NotFound => return Ok(false),
        Err(error) => return Err(failed(&error)),
    };
    channel.close().await;
    match confirmed {
        Confirmation::Ack(None) | Confirmation::NotRequested => Ok(true),
        Confirmation::Ack(Some(_)) => Ok(false),
        refused @ Confirmation::Nack(_) => {
            Err(Error::new(ErrorKind::Unavailable, unconfirmed_reason(&refused))
                .remedy("check the nodes and the disk space of the broker")
                .operation("write the log"))
        }
    }
}

/// Starts to read the directory from where it was read to before. `None` if there is none.
async fn open(shared: &LogShared, read: &DirectoryView) -> Result<Option<(AmqpChannel, Consumer)>> {
    let known = (read.last.nonce != 0).then_some(read.last);
    let start = known.map_or(StreamStart::First, |last| StreamStart::Offset(last.offset));
    consume(shared, shared.topology.names().directory(), start, PREFETCH).await
}

/// Reads the directory up to the record with this nonce, from where it was read to before. `None` if the
/// record that was read last is not there any more: the broker has deleted it with other old records, or
/// the stream is another one. Then all has to be read again.
async fn read_up_to(
    shared: &LogShared,
    (channel, mut records): (AmqpChannel, Consumer),
    mut read: DirectoryView,
    nonce: u64,
) -> Result<Option<DirectoryView>> {
    let failed = |error: lapin::Error| read_error(shared, &error);
    let timed_out = || shared.timeout_error(READ_OPERATION, LostReply::Unavailable);
    let mut known = (read.last.nonce != 0).then_some(read.last);
    let mut is_first = known.is_none();
    let mut unacknowledged = 0;
    loop {
        let next = tokio::time::timeout(shared.settings.response_timeout, records.next()).await;
        let delivery = next.ok().flatten().ok_or_else(timed_out)?.map_err(failed)?;
        let offset = offset_of(&delivery)?;
        read.is_cut_off |= std::mem::take(&mut is_first) && offset > 0;
        let record = Record::decode(&delivery.data);
        if let Some(known) = known.take() {
            let again = record.as_ref().map(|record| SeenRecord { offset, nonce: record.nonce });
            if again != Some(known) {
                channel.close().await;
                return Ok(None);
            }
        }
        if let Some(record) = record {
            read.observe(SeenRecord { offset, nonce: record.nonce }, record.kind);
            if record.nonce == nonce {
                channel.close().await;
                return Ok(Some(read));
            }
        }
        unacknowledged += 1;
        if unacknowledged == PREFETCH / 2 {
            unacknowledged = 0;
            channel.ack(delivery.delivery_tag, true).await.map_err(failed)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_as_documented_and_other_messages_are_skipped() {
        let record = |kind| Record { kind, nonce: 300 };
        for (kind, encoding) in [
            (RecordKind::Probe, &b"DQ\x01\x00\xac\x02"[..]),
            (RecordKind::Newest { number: 5, oldest: 3 }, b"DQ\x01\x01\x05\x03\xac\x02"),
            (RecordKind::Lost { named_at: 9, before: 3 }, b"DQ\x01\x02\x09\x03\xac\x02"),
            (RecordKind::Oldest(5), b"DQ\x01\x03\x05\xac\x02"),
        ] {
            let encoded = record(kind).encode();
            assert_eq!(encoded[..encoded.len() - CHECKSUM_BYTES], *encoding);
            assert_eq!(Record::decode(&encoded), Some(record(kind)));
            for index in 0..encoded.len() {
                let mut damaged = encoded.clone();
                damaged[index] ^= 1;
                assert_eq!(Record::decode(&damaged), None, "byte {index}");
                assert_eq!(Record::decode(&encoded[..index]), None);
            }
        }
        assert_eq!(Record::decode(b"foreign text"), None);
    }

    #[test]
    fn mutated_records_are_decoded_or_skipped() {
        let kinds = [
            RecordKind::Newest { number: 5, oldest: 3 },
            RecordKind::Lost { named_at: 9, before: 3 },
            RecordKind::Oldest(u32::MAX),
        ];
        let valid = kinds.map(|kind| Record { kind, nonce: 300 }.encode());
        dq_testkit::fuzz::check("records of the directory", &valid, |bytes| {
            let is_accepted = Record::decode(bytes).is_some();
            // With the right checksum.
            let body = &bytes[..bytes.len().saturating_sub(CHECKSUM_BYTES)];
            let record = [body, &xxh3_64(body).to_le_bytes()].concat();
            if let Some(record) = Record::decode(&record) {
                let seen = SeenRecord { offset: u64::MAX, nonce: record.nonce };
                DirectoryView::default().observe(seen, record.kind);
            }
            is_accepted
        });
    }
}
