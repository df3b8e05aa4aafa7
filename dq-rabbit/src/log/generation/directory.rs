//! The generations of the log, and the directory that names them.
//!
//! Each *generation* is a stream without a limit, so the broker deletes nothing that lives. The
//! *directory* is a small stream of records. They name the newest generation, where a process
//! starts to read, and the oldest that is kept. To learn them, a process appends a record of its
//! own and reads up to it. A process that finds N large enough changes to N'
//! ([`Generation::next`]):
//!
//! | Step | After a crash |
//! |---|---|
//! | 1. announce N, if it is not named | N is open |
//! | 2. declare N', check that it is not named, wait until it is on disk | N' is empty and unread; it is declared again |
//! | 3. append `Close(N)`; the first one counts | all are in N'; another process goes on with 4 |
//! | 4. write a snapshot into N' | its parts are ignored; another process writes one |
//! | 5. announce N' | the next change deletes N |
//! | 6. after a grace time: *retire* N (record a later oldest), check again, delete N | the same |
//!
//! - The newest generation exists, and begins empty (even number) or with a complete snapshot.
//!   Later ones follow a close.
//! - Entries behind a close have no effect. Their writers append them again to N'.
//! - Numbers only grow. A suspended process may create a deleted stream again, but nobody applies
//!   it: a reader asks the directory after the broker has accepted its consumer. A generation that
//!   is not retired by then was never deleted.
//! - A slow reader reads all generations in order. If its next one is retired, it starts at the
//!   newest, and its calls that took effect meanwhile get `OutcomeUnknown`.
//! - The first record wins between a retirement and a loss, so a process checks before it deletes.
//!
//! The broker may not find a generation:
//!
//! - The process has read it before: it starts again with the directory.
//! - It follows a close and is not named, or is named and begins empty: it is declared and used at
//!   once, so a single node that is killed within two seconds may lose it again.
//! - It is named and begins with a snapshot: after half a minute it is *lost*, as it is without its
//!   snapshot. The log goes back to an earlier generation, else begins empty with a larger number,
//!   and [`loss`](crate::log::loss) reports it.
//!
//! The newest generation is announced again after some hundred records, because the broker deletes
//! old ones. Without any record, a running process writes it again, and one that starts fails with
//! `Config` if there were records before.

use std::time::Duration;

use dq_core::{Error, ErrorKind, Result};
use futures_util::StreamExt;
use lapin::{BasicProperties, Confirmation, Consumer};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{DirectoryView, Generation, RecordKind, SeenRecord};
use crate::connect::AmqpChannel;
use crate::error::{LostReply, Permission, Refusal, from_use, refusal, unconfirmed};
use crate::log::shared::{LogShared, random_id};
use crate::log::stream::{READ_OPERATION, consume, offset_of, read_error};
use crate::topology::names::DIRECTORY_KEY;

/// A record's first bytes, with the format's version. `postcard` data and a checksum of all before
/// it follow.
const MAGIC: &[u8] = b"DQ\x01";
const CHECKSUM_BYTES: usize = 8;

const PREFETCH: u16 = 256;

/// The broker deletes old records, so the newest generation is announced again after this many.
const REPEAT_AFTER: u64 = 200;

/// Pauses before further looks for a missing generation, in milliseconds. Together, longer than a
/// node needs to start or to notice a partition.
const LOST_PAUSES_MS: [u64; 6] = [200, 600, 2_000, 5_000, 10_000, 15_000];

/// A record of the directory. The nonce tells it from other records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    kind: RecordKind,
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

    fn decode(message: &[u8]) -> Option<Self> {
        let (record, checksum) = message.split_last_chunk::<CHECKSUM_BYTES>()?;
        if xxh3_64(record) != u64::from_le_bytes(*checksum) {
            return None;
        }
        let (record, rest) = postcard::take_from_bytes(record.strip_prefix(MAGIC)?).ok()?;
        rest.is_empty().then_some(record)
    }
}

/// Returns the newest generation in the directory. If there is none, announces the newest that this
/// process knows, or the first.
///
/// # Errors
/// `Config` if the directory has lost its records and this process does not know where the log is.
pub(in crate::log) async fn locate(shared: &LogShared) -> Result<Generation> {
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

/// Names the generation in the directory. It must be complete or begin empty.
pub(in crate::log) async fn announce(shared: &LogShared, generation: Generation) -> Result<()> {
    // Nothing that lives is before one that begins empty.
    let oldest =
        if generation.begins_empty() { generation } else { shared.state().directory.oldest };
    let kind = RecordKind::Newest { number: generation.number(), oldest: oldest.number() };
    append(shared, Record::new(shared, kind)).await
}

pub(in crate::log) async fn may_be_deleted(
    shared: &LogShared,
    generation: Generation,
) -> Result<bool> {
    Ok(look(shared).await?.may_be_deleted(generation))
}

/// Lets earlier generations be deleted. `false` if the log has gone back to one of them.
pub(in crate::log) async fn retire_before(shared: &LogShared, oldest: Generation) -> Result<bool> {
    if look(shared).await?.oldest >= oldest {
        return Ok(true);
    }
    append(shared, Record::new(shared, RecordKind::Oldest(oldest.number()))).await?;
    Ok(look(shared).await?.oldest >= oldest)
}

/// Reads new records, and repeats the newest generation's before the broker deletes it.
async fn look(shared: &LogShared) -> Result<DirectoryView> {
    let own = Record::new(shared, RecordKind::Probe);
    let known = shared.state().directory;
    // First, so that a process that may not read does not fill the directory.
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
    // After a failure, the next look starts at the beginning: the known record may be gone.
    {
        let mut state = shared.state();
        state.directory = *read.as_ref().unwrap_or(&DirectoryView::default());
        state.named = state.directory.newest.or(state.named);
    }
    let view = read?;
    if let (Some(newest), Some(last)) = (view.newest, view.last)
        && last.record_offset - view.newest_record_offset > REPEAT_AFTER
    {
        announce(shared, newest).await?;
    }
    Ok(view)
}

/// Declares the next generation. `false` if the directory names a later one.
pub(in crate::log) async fn prepare_next(
    shared: &LogShared,
    generation: Generation,
) -> Result<bool> {
    // A node that is cut off could declare a stream of its own, but not answer this.
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
        // This process may have created it again.
        shared.topology.delete_generations([next]).await?;
    }
    Ok(newest <= generation)
}

/// Handles a generation that the broker does not find, and that this process has not read, as the
/// module describes. Returns whether reading can go on in it.
pub(in crate::log) async fn restore(
    shared: &LogShared,
    generation: Generation,
    follows_close: bool,
) -> Result<bool> {
    let newest = locate(shared).await?;
    let may_exist = if follows_close { newest < generation } else { newest == generation };
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

/// Whether nobody can read this earlier generation any more.
pub(in crate::log) async fn is_gone(shared: &LogShared, generation: Generation) -> Result<bool> {
    Ok(may_be_deleted(shared, generation).await? || is_lost(shared, generation).await?)
}

/// Whether the broker does not find the generation for half a minute.
async fn is_lost(shared: &LogShared, generation: Generation) -> Result<bool> {
    for pause in LOST_PAUSES_MS {
        shared.clock.sleep(Duration::from_millis(pause)).await;
        if shared.topology.has_generation(generation).await? {
            return Ok(false);
        }
        // This node's metadata may be out of date.
        shared.switch_node();
    }
    Ok(true)
}

/// Makes the log go on in a generation before the lost one. `false` if none is left.
pub(in crate::log) async fn fall_back(shared: &LogShared, lost: Generation) -> Result<bool> {
    let view = look(shared).await?;
    if view.newest != Some(lost) {
        return Ok(true);
    }
    let candidates = lost.before().rev().filter(|before| !view.may_be_deleted(*before));
    for before in candidates {
        if shared.topology.has_generation(before).await? {
            let named_at = view.newest_record_offset;
            let kind = RecordKind::Lost { named_at, before: before.number() };
            append(shared, Record::new(shared, kind)).await?;
            shared.state().read_before.lose(lost);
            return Ok(true);
        }
    }
    Ok(false)
}

async fn replace(shared: &LogShared, lost: Generation) -> Result<()> {
    if locate(shared).await? != lost {
        return Ok(());
    }
    announce(shared, lost.replacement()).await?;
    shared.state().read_before.lose(lost);
    Ok(())
}

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

/// Appends a record; `false` if the stream or the exchange is missing.
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
    match unconfirmed("write the log", shared.publish.broker_info(), &confirmed) {
        None => Ok(true),
        Some(_) if matches!(confirmed, Confirmation::Ack(_)) => Ok(false),
        Some(rejected) => Err(rejected),
    }
}

async fn open(shared: &LogShared, read: &DirectoryView) -> Result<Option<(AmqpChannel, Consumer)>> {
    let start = read.last.map_or(0, |last| last.record_offset);
    consume(shared, shared.topology.names().directory(), start, PREFETCH).await
}

/// Reads up to the record with this nonce. `None` if the known record is gone: old records were
/// deleted, or the stream is another one.
async fn read_up_to(
    shared: &LogShared,
    (channel, mut records): (AmqpChannel, Consumer),
    mut read: DirectoryView,
    nonce: u64,
) -> Result<Option<DirectoryView>> {
    let failed = |error: lapin::Error| read_error(shared, &error);
    let timed_out = || shared.timeout_error(READ_OPERATION, LostReply::Unavailable);
    let mut known = read.last;
    let mut is_first = known.is_none();
    let mut unacknowledged = 0;
    loop {
        let next = tokio::time::timeout(shared.response_timeout, records.next()).await;
        let delivery = next.ok().flatten().ok_or_else(timed_out)?.map_err(failed)?;
        let record_offset = offset_of(&delivery)?;
        read.is_cut_off |= std::mem::take(&mut is_first) && record_offset > 0;
        let record = Record::decode(&delivery.data)
            .map(|record| (SeenRecord { record_offset, nonce: record.nonce }, record.kind));
        if known.is_some() && known.take() != record.map(|(seen, _)| seen) {
            channel.close().await;
            return Ok(None);
        }
        if let Some((seen, kind)) = record {
            read.observe(seen, kind);
            if seen.nonce == nonce {
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
            let body = &bytes[..bytes.len().saturating_sub(CHECKSUM_BYTES)];
            let record = [body, &xxh3_64(body).to_le_bytes()].concat();
            if let Some(record) = Record::decode(&record) {
                let seen = SeenRecord { record_offset: u64::MAX, nonce: record.nonce };
                DirectoryView::default().observe(seen, record.kind);
            }
            is_accepted
        });
    }
}
