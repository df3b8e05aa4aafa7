//! The tasks' conclusions from the entries that they read.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Due, Entropy, Error, ErrorKind, FencingToken, HistoryLimit, HistoryLimits, Lease, Settlement,
    SystemClock, Verdict,
};
use futures_util::{FutureExt, poll};

use super::append::has_budget;
use super::apply::{Progress, apply_all};
use super::generation::Generation;
use super::outgoing::{next_message, rewrite};
use super::pending::{PendingCall, SentCall};
use super::shared::{LogContext, LogShared};
use super::tail;
use super::wire::{self, Command, Entry, encode};
use crate::config::RabbitConfig;
use crate::connect::AmqpConnection;
use crate::error::LostReply;
use crate::topology::Topology;

/// With this many sent calls, without a broker.
fn shared(generation: Generation, calls: u64) -> Arc<LogShared> {
    let config = RabbitConfig::new("amqp://127.0.0.1:1".to_owned());
    let entropy = Arc::new(Entropy::seeded(1));
    let broker = Arc::new(config.broker(Arc::clone(&entropy)).unwrap());
    let connection = Arc::new(AmqpConnection::start(broker, "test"));
    let shared = LogShared::new(LogContext {
        response_timeout: Duration::from_secs(5),
        log_size: 16 << 20,
        history: HistoryLimits::all(HistoryLimit::OFF),
        clock: Arc::new(SystemClock),
        entropy,
        topology: Arc::new(Topology::new(Arc::clone(&connection), &config)),
        publish: Arc::clone(&connection),
        consume: connection,
        listeners: Arc::default(),
        payloads: Arc::default(),
    });
    {
        let mut state = shared.state();
        for sequence in 1..=calls {
            let call = call_of(&shared, Command::Barrier);
            state.outbox.pending_bytes += call.size;
            state.outbox.sent_bytes += call.size;
            state.outbox.sent.push_back(SentCall { sequence, call });
        }
        state.outbox.next_sequence = calls + 1;
    }
    begin(&shared, generation);
    Arc::new(shared)
}

fn call_of(shared: &LogShared, command: Command) -> PendingCall {
    PendingCall::without_caller(shared.clock.now(), shared.clock.elapsed(), command)
}

fn begin(shared: &LogShared, generation: Generation) {
    let (size, clock) = (shared.log_size, &shared.clock);
    shared.state().begin_generation(generation, size, clock.elapsed());
}

fn read(shared: &LogShared, first: u64, entries: &[(u64, Command)]) {
    let (producer_id, at) = (shared.state().outbox.producer_id, shared.clock.now());
    let message = |(offset, (sequence, command)): (u64, &(u64, Command))| {
        let entry = Entry { producer_id, sequence: *sequence, at, command: command.clone() };
        (offset, Bytes::from(encode(&[entry])))
    };
    let messages = (first..).zip(entries).map(message).collect();
    apply_all(shared, messages).unwrap();
}

fn read_barriers(shared: &LogShared, first: u64, sequences: &[u64]) {
    let barriers: Vec<_> = sequences.iter().map(|it| (*it, Command::Barrier)).collect();
    read(shared, first, &barriers);
}

fn awaited(shared: &LogShared) -> Vec<u64> {
    shared.state().outbox.sent.iter().map(|sent| sent.sequence).collect()
}

#[tokio::test]
async fn a_damaged_message_is_read_again_and_skipped_if_it_is_the_same() {
    let shared = shared(Generation::FIRST, 0);
    let (at, command) = (shared.clock.now(), Command::Barrier);
    let intact = encode(&[Entry { producer_id: 7, sequence: 1, at, command }]);
    let mut damaged = intact.clone();
    damaged[5] ^= 1;
    let read = |offset, message: &[u8]| {
        let message = Bytes::copy_from_slice(message);
        let progress = apply_all(&shared, vec![(offset, message)]).unwrap();
        let state = shared.state();
        (progress, state.next_offset, state.skipped.damaged)
    };
    assert_eq!(read(0, &damaged), (Progress::Suspect, None, 0));
    assert_eq!(read(0, &intact), (Progress::All, Some(1), 0), "it was damaged on the way");
    assert_eq!(read(1, &damaged), (Progress::Suspect, Some(1), 0));
    assert_eq!(read(1, &damaged), (Progress::All, Some(2), 1));
}

#[tokio::test]
async fn a_process_that_reads_nothing_back_writes_little() {
    let shared = shared(Generation::FIRST, 0);
    let mut sent = 0;
    while has_budget(&shared, &shared.state()) {
        let job = dq_testkit::fixture::job("q").payload(vec![1; 300 * 1024]);
        let call = call_of(&shared, Command::Schedule(vec![job.into()]));
        shared.state().outbox.enqueue(call);
        assert!(next_message(&shared).0.is_some());
        sent += 1;
    }
    assert_eq!(sent, 2, "one thirty-second of 16 MiB may be in flight");
}

#[tokio::test]
async fn an_entry_that_waits_for_a_snapshot_is_no_sign_of_loss_unless_it_is_new() {
    let generation = Generation::new(1);
    let shared = shared(generation, 2);
    tail::reset(&shared);
    begin(&shared, generation);
    assert_eq!(awaited(&shared), [1, 2, 3], "with the barrier of the replay");
    read_barriers(&shared, generation.offset(0), &[1, 2]);
    assert!(!shared.state().lacks_snapshot, "the snapshot may follow what was written before");
    read_barriers(&shared, generation.offset(2), &[3]);
    assert!(shared.state().lacks_snapshot, "no snapshot is left");
}

#[tokio::test]
async fn old_copies_after_a_gap_are_no_sign_of_loss() {
    let shared = shared(Generation::FIRST, 3);
    read_barriers(&shared, 0, &[2, 1, 2]);
    assert_eq!(awaited(&shared), [3]);
    tail::reset(&shared);
    begin(&shared, Generation::FIRST);
    // The first one is a copy of the second call.
    read_barriers(&shared, 0, &[2, 1, 2, 3]);
    assert!(!shared.state().outbox.sequence_lost);
    assert_eq!(awaited(&shared), [4], "the barrier of the replay");
}

#[tokio::test]
async fn the_barrier_of_a_replay_shows_that_the_log_has_lost_entries() {
    let shared = shared(Generation::FIRST, 3);
    read_barriers(&shared, 0, &[1, 2]);
    let producer_id = shared.state().outbox.producer_id;
    tail::reset(&shared);
    begin(&shared, Generation::FIRST);
    // The log has lost both, and the third may be an old copy.
    read_barriers(&shared, 0, &[3]);
    assert!(!shared.state().outbox.sequence_lost);
    shared.state().outbox.sent[0].call.size = 1 << 20;
    let (probe, last) = rewrite(&shared, 1);
    assert_eq!((probe.len(), last), (2, Some(3)), "with the barrier");
    read_barriers(&shared, 1, &[3, 4]);
    assert!(shared.state().outbox.sequence_lost);
    rewrite(&shared, 1);
    assert_ne!(shared.state().outbox.producer_id, producer_id);
    assert_eq!(awaited(&shared), [1, 2]);
}

#[tokio::test]
async fn the_outcome_of_a_call_that_was_sent_is_unknown_when_the_log_cannot_be_read_any_further() {
    let shared = shared(Generation::FIRST, 0);
    let call = || {
        let lost_reply = LostReply::OutcomeUnknown;
        shared.call("call", lost_reply, Command::Barrier, |_, (), _| ()).map(Result::unwrap_err)
    };
    let (mut sent, mut unsent) = (pin!(call()), pin!(call()));
    assert!(poll!(&mut sent).is_pending());
    assert!(next_message(&shared).0.is_some());
    assert!(poll!(&mut unsent).is_pending());
    shared.fail(Error::new(ErrorKind::Incompatible, "an entry of a later version"));
    let error = |call: Option<Error>| call.expect("an answer at once").kind();
    assert_eq!(error(sent.now_or_never()), ErrorKind::OutcomeUnknown, "others apply it");
    assert_eq!(error(unsent.now_or_never()), ErrorKind::Incompatible, "it was not written");
    assert_eq!(error(call().now_or_never()), ErrorKind::Incompatible);
}

#[tokio::test]
async fn the_size_of_the_log_is_what_the_log_says() {
    let shared = shared(Generation::FIRST, 0);
    shared.state().retention.add_message(3 << 20);
    assert!(shared.state().needs_close() && !shared.state().blocks_growth(), "of 16 MiB");
    let own = shared.capacity();
    for (sequence, capacity, expected) in [(1, own * 4, (false, false)), (2, own / 2, (true, true))]
    {
        read(&shared, sequence - 1, &[(sequence, Command::SetCapacity(capacity))]);
        let mut state = shared.state();
        assert_eq!((state.needs_close(), state.blocks_growth()), expected, "{capacity}");
    }
}

#[tokio::test]
async fn a_call_that_gets_no_answer_names_the_newest_lasting_error() {
    let shared = shared(Generation::FIRST, 0);
    let named = || {
        let error = shared.timeout_error("call", LostReply::Unavailable);
        (error.kind(), error.to_string().contains("the newest"))
    };
    for (kind, message, expected) in [
        (ErrorKind::Unavailable, "the newest", (ErrorKind::Unavailable, false)),
        (ErrorKind::Full, "the newest", (ErrorKind::Full, true)),
        (ErrorKind::Unavailable, "a later one", (ErrorKind::Full, true)),
        (ErrorKind::Config, "the newest", (ErrorKind::Config, true)),
        (ErrorKind::Full, "a later one", (ErrorKind::Full, false)),
    ] {
        shared.record_error(Error::new(kind, message));
        assert_eq!(named(), expected, "{kind:?}, {message}");
    }
}

#[tokio::test]
async fn new_jobs_that_wait_keep_no_settlement_from_being_written() {
    let shared = shared(Generation::FIRST, 0);
    let job = dq_testkit::fixture::job("q").payload(vec![0; 1 << 20]);
    let lease = Lease { queue: job.queue.clone(), job: job.id, token: FencingToken(1) };
    // As large as a new job.
    let again = Verdict::Again { due: Due::NOW, payload: job.payload.clone() };
    let again = wire::Settlement::try_from(&Settlement::new(lease, again)).unwrap();
    let submit = |command| shared.submit("call", command, Arc::default(), None);
    let schedule = || submit(Command::Schedule(vec![job.clone().into()]));
    let accepted = (0..100).take_while(|_| schedule().is_ok()).count();
    assert!((10..100).contains(&accepted), "{accepted} calls of a MiB");
    assert_eq!(schedule().unwrap_err().kind(), ErrorKind::Unavailable);
    submit(Command::Settle(vec![again])).unwrap();
    // New jobs wait for the next generation.
    shared.state().retention.add_message(8 << 20);
    assert!(next_message(&shared).0.is_some());
    let state = shared.state();
    assert!(matches!(state.outbox.sent[0].call.command, Command::Settle(_)));
    assert_eq!(state.outbox.unsent.len(), accepted);
}

#[tokio::test]
async fn a_process_may_be_behind_from_a_close_until_it_reads_an_entry_of_its_own() {
    let shared = shared(Generation::FIRST, 3);
    assert!(shared.is_catching_up());
    read_barriers(&shared, 0, &[1]);
    assert!(!shared.is_catching_up());
    read(&shared, 1, &[(2, Command::Close(0))]);
    assert!(shared.is_catching_up());
    assert_eq!(shared.generation(), Some(Generation::new(1)));
    read_barriers(&shared, Generation::new(1).offset(0), &[3]);
    assert!(!shared.is_catching_up());
}
