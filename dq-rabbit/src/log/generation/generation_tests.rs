//! A model of processes that read, write, change and delete generations, suspended between any two
//! steps. The real code decides what the directory says; the steps are those of `directory.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proptest::prelude::*;

use super::{DirectoryView, Generation, RecordKind, SeenRecord};

const PROCESSES: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Message {
    /// With a unique number.
    Write(u64),
    Close(Generation),
    /// This process begins a snapshot.
    Begin(usize),
    /// With the state at the snapshot's beginning.
    End {
        begin: usize,
        state: Vec<u64>,
    },
}

#[derive(Debug)]
struct Stream {
    id: u64,
    messages: Vec<Message>,
}

/// The broker, and the log by its rules: the messages of each generation's first stream, up to its
/// close.
#[derive(Debug, Default)]
struct Broker {
    records: Vec<RecordKind>,
    streams: BTreeMap<Generation, Stream>,
    streams_created: u64,
    first: HashMap<Generation, u64>,
    retired: BTreeSet<Generation>,
    current: Generation,
    applied: Vec<u64>,
    /// Entries that have taken effect before each position.
    lengths: HashMap<(Generation, usize), usize>,
}

impl Broker {
    fn view(&self) -> DirectoryView {
        let mut view = DirectoryView::default();
        for (offset, kind) in (0..).zip(&self.records) {
            view.observe(SeenRecord { offset, nonce: offset + 1 }, *kind);
        }
        view
    }

    fn newest(&self) -> Generation {
        self.view().newest.unwrap()
    }

    fn announce(&mut self, generation: Generation) {
        let oldest = self.view().oldest.number();
        self.records.push(RecordKind::Newest { number: generation.number(), oldest });
    }

    fn declare(&mut self, generation: Generation) {
        if !self.streams.contains_key(&generation) {
            self.streams_created += 1;
            let id = self.streams_created;
            self.streams.insert(generation, Stream { id, messages: Vec::new() });
            self.first.entry(generation).or_insert(id);
        }
    }

    fn delete(&mut self, generation: Generation) {
        self.retired.insert(generation);
        assert!(generation < self.current, "{generation:?} is in use");
        self.streams.remove(&generation);
        assert!(self.streams.contains_key(&self.newest()), "the newest generation is deleted");
    }

    fn append(&mut self, generation: Generation, message: Message) {
        let Some(stream) = self.streams.get_mut(&generation) else { return };
        stream.messages.push(message.clone());
        if generation != self.current || self.first[&generation] != stream.id {
            return;
        }
        match message {
            Message::Write(write) if !self.applied.contains(&write) => self.applied.push(write),
            Message::Close(closed) if closed == generation => {
                self.current = generation.next();
                self.lengths.insert((self.current, 0), self.applied.len());
            }
            _ => {}
        }
        self.lengths.insert((generation, stream.messages.len()), self.applied.len());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadStep {
    Locate,
    Consume,
    Look,
    Read,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ChangeStep {
    Idle,
    Announce(Generation),
    Prepare(Generation),
    Declare(Generation),
    Verify(Generation),
    Close(Generation),
    End(Generation, usize, Vec<u64>),
    Retire(Generation),
    Delete(Vec<Generation>),
}

#[derive(Debug)]
struct Process {
    number: usize,
    reading: ReadStep,
    generation: Generation,
    is_after_close: bool,
    consumer: u64,
    offset: usize,
    last: Option<Message>,
    /// Unknown before a snapshot was read.
    state: Option<Vec<u64>>,
    /// With offsets, while the state is unknown.
    collected: Vec<(usize, u64)>,
    has_snapshot: bool,
    changing: ChangeStep,
    unread: Vec<u64>,
    replays: u64,
}

impl Process {
    fn new(number: usize) -> Self {
        Self {
            number,
            reading: ReadStep::Locate,
            generation: Generation::FIRST,
            is_after_close: false,
            consumer: 0,
            offset: 0,
            last: None,
            state: None,
            collected: Vec::new(),
            has_snapshot: false,
            changing: ChangeStep::Idle,
            unread: Vec::new(),
            replays: 0,
        }
    }

    fn begin_generation(&mut self, generation: Generation, is_after_close: bool) {
        self.generation = generation;
        self.is_after_close = is_after_close;
        (self.offset, self.last) = (0, None);
        self.has_snapshot = generation.begins_empty();
        self.collected.clear();
        self.reading = ReadStep::Consume;
    }

    fn reset(&mut self) {
        self.replays += u64::from(self.state.is_some());
        self.state = None;
        self.reading = ReadStep::Locate;
    }

    fn read(&mut self, broker: &mut Broker) {
        match self.reading {
            ReadStep::Locate => {
                if broker.view().newest.is_none() {
                    broker.announce(Generation::FIRST);
                }
                let newest = broker.newest();
                self.state = newest.begins_empty().then(Vec::new);
                self.begin_generation(newest, false);
            }
            ReadStep::Consume => match broker.streams.get(&self.generation) {
                Some(stream) => {
                    self.consumer = stream.id;
                    self.reading = ReadStep::Look;
                }
                None => {
                    let newest = broker.newest();
                    let may_exist = if self.is_after_close {
                        newest < self.generation
                    } else {
                        newest == self.generation && newest.begins_empty()
                    };
                    if self.offset == 0 && may_exist {
                        broker.declare(self.generation);
                    } else {
                        self.reset();
                    }
                }
            },
            ReadStep::Look if broker.view().may_be_deleted(self.generation) => {
                assert!(broker.retired.contains(&self.generation), "replayed in vain: {self:?}");
                self.reset();
            }
            ReadStep::Look => {
                let stream = broker.streams.get(&self.generation);
                let last_again = stream.and_then(|it| it.messages.get(self.offset.checked_sub(1)?));
                match stream {
                    Some(_) if last_again != self.last.as_ref() => self.reset(),
                    _ => self.reading = ReadStep::Read,
                }
            }
            ReadStep::Read => {
                let stream = broker.streams.get(&self.generation);
                let Some(stream) = stream.filter(|stream| stream.id == self.consumer) else {
                    self.reading = ReadStep::Consume;
                    return;
                };
                if let Some(message) = stream.messages.get(self.offset) {
                    self.apply(message.clone());
                    let Some(state) = &self.state else { return };
                    let expected = broker.lengths.get(&(self.generation, self.offset));
                    let expected = expected.map_or(&[][..], |length| &broker.applied[..*length]);
                    assert_eq!(state, expected, "another log was read: {self:?}");
                }
            }
        }
    }

    fn apply(&mut self, message: Message) {
        let offset = self.offset;
        self.offset += 1;
        self.last = Some(message.clone());
        match message {
            Message::Write(write) => match &mut self.state {
                Some(state) => {
                    if !state.contains(&write) {
                        state.push(write);
                    }
                    self.unread.retain(|unread| *unread != write);
                }
                None => self.collected.push((offset, write)),
            },
            Message::Begin(process) => {
                if let Some(state) = &self.state
                    && process == self.number
                    && !self.has_snapshot
                {
                    self.changing = ChangeStep::End(self.generation, offset, state.clone());
                }
            }
            Message::End { begin, mut state } => {
                self.has_snapshot = true;
                if self.state.is_none() {
                    for (offset, write) in self.collected.drain(..) {
                        if offset > begin && !state.contains(&write) {
                            state.push(write);
                        }
                    }
                    self.unread.retain(|unread| !state.contains(unread));
                    self.state = Some(state);
                }
            }
            Message::Close(generation) if generation == self.generation => {
                assert!(self.state.is_some(), "closed without a snapshot: {self:?}");
                self.begin_generation(generation.next(), true);
            }
            Message::Close(_) => {}
        }
    }

    /// Takes one step. Keeps this many numbers of earlier generations.
    fn change(&mut self, broker: &mut Broker, kept: u32, may_close: bool) {
        let knows_state = self.state.is_some() && self.reading == ReadStep::Read;
        self.changing = match std::mem::replace(&mut self.changing, ChangeStep::Idle) {
            ChangeStep::Idle if knows_state && !self.has_snapshot => {
                broker.append(self.generation, Message::Begin(self.number));
                ChangeStep::Idle
            }
            ChangeStep::Idle if knows_state && may_close => ChangeStep::Announce(self.generation),
            ChangeStep::Idle => ChangeStep::Idle,
            ChangeStep::Announce(generation) => {
                broker.announce(generation);
                ChangeStep::Prepare(generation)
            }
            ChangeStep::Prepare(generation) if broker.newest() > generation => ChangeStep::Idle,
            ChangeStep::Prepare(generation) => ChangeStep::Declare(generation),
            ChangeStep::Declare(generation) => {
                broker.declare(generation.next());
                ChangeStep::Verify(generation)
            }
            ChangeStep::Verify(generation) => {
                let (view, next) = (broker.view(), generation.next());
                if view.newest > Some(next) && view.may_be_deleted(next) {
                    broker.delete(next);
                }
                if view.newest > Some(generation) {
                    ChangeStep::Idle
                } else {
                    ChangeStep::Close(generation)
                }
            }
            ChangeStep::Close(generation) => {
                if self.generation == generation {
                    broker.append(generation, Message::Close(generation));
                }
                ChangeStep::Idle
            }
            ChangeStep::End(generation, begin, state) => {
                if self.generation != generation || self.reading != ReadStep::Read {
                    ChangeStep::Idle
                } else if self.has_snapshot {
                    broker.announce(generation);
                    ChangeStep::Retire(generation)
                } else {
                    let end = Message::End { begin, state: state.clone() };
                    broker.append(generation, end);
                    ChangeStep::End(generation, begin, state)
                }
            }
            ChangeStep::Retire(newest) => {
                let oldest = newest.back(kept);
                if broker.newest() < newest {
                    ChangeStep::Idle
                } else if broker.view().oldest >= oldest {
                    ChangeStep::Delete(oldest.before().collect())
                } else {
                    broker.records.push(RecordKind::Oldest(oldest.number()));
                    broker.retired.extend(oldest.before());
                    ChangeStep::Retire(newest)
                }
            }
            ChangeStep::Delete(mut old) => match old.pop() {
                Some(generation) => {
                    broker.delete(generation);
                    ChangeStep::Delete(old)
                }
                None => ChangeStep::Idle,
            },
        };
    }

    fn write(&mut self, broker: &mut Broker) {
        if self.reading == ReadStep::Read {
            for write in &self.unread {
                broker.append(self.generation, Message::Write(*write));
            }
        }
    }
}

/// One process acts, all others are suspended.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// This many entries.
    Write(u8),
    Rewrite,
    /// This many steps.
    Read(u8),
    /// This many steps.
    Change(u8),
    /// This many steps, with reading after each.
    ReadAndChange(u8),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        2 => (1..3_u8).prop_map(Action::Write),
        1 => Just(Action::Rewrite),
        3 => (1..20_u8).prop_map(Action::Read),
        2 => (1..4_u8).prop_map(Action::Change),
        4 => (1..60_u8).prop_map(Action::ReadAndChange),
    ]
}

fn read_all(process: &mut Process, broker: &mut Broker) {
    let at = |process: &Process| (process.reading, process.generation, process.offset);
    let mut idle = 0;
    // Declaring a stream leaves the process where it is.
    while idle < 3 {
        let before = at(process);
        process.read(broker);
        idle = if at(process) == before { idle + 1 } else { 0 };
    }
}

fn change_all(process: &mut Process, broker: &mut Broker) {
    let target = process.generation.next();
    for _ in 0..100 {
        process.change(broker, 0, process.generation < target);
        read_all(process, broker);
    }
    assert_eq!((process.generation, &process.changing), (target, &ChangeStep::Idle));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn suspended_processes_read_one_log_and_replay_it_only_if_it_was_deleted(
        kept in prop_oneof![Just(0), Just(2), Just(8)],
        steps in proptest::collection::vec((0..PROCESSES, action()), 1..80),
    ) {
        let mut broker = Broker::default();
        broker.lengths.insert((Generation::FIRST, 0), 0);
        let mut processes: Vec<_> = (0..PROCESSES).map(Process::new).collect();
        let mut writes = 0;
        for (number, action) in steps {
            let process = &mut processes[number];
            match action {
                Action::Write(count) => {
                    let new = writes + 1..=writes + u64::from(count);
                    writes = *new.end();
                    process.unread.extend(new);
                    process.write(&mut broker);
                }
                Action::Rewrite => process.write(&mut broker),
                Action::Read(steps) => (0..steps).for_each(|_| process.read(&mut broker)),
                Action::Change(steps) => {
                    (0..steps).for_each(|_| process.change(&mut broker, kept, true));
                }
                Action::ReadAndChange(steps) => {
                    for _ in 0..steps {
                        process.change(&mut broker, kept, true);
                        (0..10).for_each(|_| process.read(&mut broker));
                    }
                }
            }
        }
        for _ in 0..60 {
            for process in &mut processes {
                read_all(process, &mut broker);
                process.change(&mut broker, kept, false);
                process.write(&mut broker);
            }
        }
        for process in &mut processes {
            read_all(process, &mut broker);
            prop_assert_eq!(process.state.as_ref(), Some(&broker.applied), "{:?}", process);
            prop_assert!(process.unread.is_empty());
        }
        broker.applied.sort_unstable();
        prop_assert_eq!(broker.applied, (1..=writes).collect::<Vec<_>>());
    }
}

/// Its last message is there again, at the same place.
#[test]
fn a_reader_in_the_middle_of_a_deleted_stream_does_not_go_on_in_one_of_the_same_name() {
    let mut broker = Broker::default();
    broker.lengths.insert((Generation::FIRST, 0), 0);
    let [mut reader, mut writer, mut closer, mut suspended] = [0, 1, 2, 3].map(Process::new);
    for process in [&mut reader, &mut writer, &mut closer, &mut suspended] {
        read_all(process, &mut broker);
    }
    (0..3).for_each(|_| suspended.change(&mut broker, 0, true));
    assert_eq!(suspended.changing, ChangeStep::Declare(Generation::FIRST));
    closer.changing = ChangeStep::Close(Generation::FIRST);
    broker.declare(Generation::FIRST.next());
    closer.change(&mut broker, 0, false);
    for process in [&mut reader, &mut writer, &mut closer] {
        read_all(process, &mut broker);
    }
    writer.unread.push(1);
    writer.write(&mut broker);
    read_all(&mut reader, &mut broker);
    assert_eq!((reader.generation, reader.offset), (Generation::FIRST.next(), 1));

    read_all(&mut closer, &mut broker);
    change_all(&mut closer, &mut broker);
    assert!(!broker.streams.contains_key(&reader.generation));
    suspended.change(&mut broker, 0, true);
    assert!(broker.streams.contains_key(&reader.generation));
    writer.unread.push(2);
    writer.write(&mut broker);
    let last = &broker.streams[&reader.generation].messages[0];
    assert_eq!(Some(last), reader.last.as_ref());
    read_all(&mut reader, &mut broker);
    assert_eq!(reader.state, Some(vec![1]));
    assert_eq!(reader.generation, closer.generation);
}
