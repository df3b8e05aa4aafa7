//! Schedule, cancel and reschedule.

use std::collections::HashSet;

use bytes::Bytes;
use dq_core::{
    Cancelled, Due, Error, JobRef, NewJob, Receipt, Reschedule, Rescheduled, Result, Scheduled,
    Target, Timestamp,
};
use redis::Value;

use crate::batch::{self, Ask, Chunk};
use crate::error::unexpected;
use crate::handle::{self, HANDLE};
use crate::packing::Packing;
use crate::redisson::member::OTHER_FORMAT;
use crate::reply::{self, Reply};
use crate::shards::adopt::Tries;
use crate::store::Store;

const SCHEDULE: &str = "schedule";
const CANCEL: &str = "cancel";
const RESCHEDULE: &str = "reschedule";

/// What became of one job in one shard.
enum Put {
    /// All is done.
    Settled(Scheduled),
    /// It was only to be stored in the place of another, and there is none.
    Absent,
    /// The layout is not the one that was believed in.
    Moved,
}

impl Store {
    /// Stores jobs, or says which have their ids or keys. What is asked in which order, and why no
    /// key is live twice, stands in `shards.rs`.
    pub(crate) async fn schedule<'a>(&'a self, jobs: &'a [NewJob]) -> Result<Vec<Scheduled>> {
        self.register(SCHEDULE, jobs.iter().map(|job| &job.queue)).await?;
        self.adopt(SCHEDULE, jobs.iter().map(|job| &job.queue)).await?;
        let mut answers: Vec<Option<Scheduled>> = vec![None; jobs.len()];
        let mut open: Vec<usize> = (0..jobs.len()).collect();
        let mut tries = Tries::default();
        while !open.is_empty() {
            tries.again(SCHEDULE)?;
            let queues = open.iter().map(|place| &jobs[*place].queue);
            let spreads = self.calm_spreads(SCHEDULE, queues).await?;
            let mut former = Vec::new();
            for &place in &open {
                let item = &jobs[place];
                let spread = &spreads[&item.queue];
                if spread.layout.is_mixed() {
                    let homes = spread.layout.former_homes(&name(item)).into_iter();
                    former.extend(homes.map(|shard| Ask { place, item, lane: spread.lane(shard) }));
                }
            }
            let mut moved = HashSet::new();
            for (place, put) in batch::run(former, |chunk| Box::pin(self.put(chunk, false))).await?
            {
                match put {
                    Put::Settled(answer) => answers[place] = Some(answer),
                    Put::Absent => {}
                    Put::Moved => drop(moved.insert(place)),
                }
            }
            open.retain(|place| answers[*place].is_none());
            let create = open.iter().filter(|place| !moved.contains(*place)).map(|&place| {
                let item = &jobs[place];
                let spread = &spreads[&item.queue];
                let home = if spread.is_single() { 0 } else { spread.layout.home(&name(item)) };
                Ask { place, item, lane: spread.lane(home) }
            });
            let create = create.collect();
            for (place, put) in batch::run(create, |chunk| Box::pin(self.put(chunk, true))).await? {
                if let Put::Settled(answer) = put {
                    answers[place] = Some(answer);
                }
            }
            open.retain(|place| answers[*place].is_none());
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Stores jobs in one shard; only in the places of others there unless it `creates`.
    async fn put(&self, chunk: Chunk<'_, NewJob>, creates: bool) -> Result<Vec<(usize, Put)>> {
        let mut call = self.scripts.schedule.on([&*chunk.lane]);
        let jobs = chunk.items.iter().map(|(_, job)| *job);
        call.arg(&chunk.lane.channel);
        self.scripts.packing.add(&mut call, jobs, creates, self.clock.reckon());
        let sent = self.clock.moment();
        let answer = self.ask(SCHEDULE, &chunk.lane, call).await;
        let Some(answer) = answer.map_err(|error| clash(error, &chunk))? else {
            return Ok(chunk.items.iter().map(|(place, _)| (*place, Put::Moved)).collect());
        };
        if let Packing::Member(format) = self.scripts.packing
            && answer == Value::SimpleString(OTHER_FORMAT.to_owned())
        {
            return Err(format.refusal());
        }
        let Some((now, answers)) = put_answers(answer, &chunk, creates) else {
            return unexpected(SCHEDULE);
        };
        self.clock.hear(sent, now);
        Ok(answers)
    }

    /// Takes jobs back.
    pub(crate) async fn cancel<'a>(&'a self, jobs: &'a [JobRef]) -> Result<Vec<Cancelled>> {
        let absent = |answer: &Cancelled| *answer == Cancelled::NotFound;
        self.seek(CANCEL, jobs, absent, |chunk| Box::pin(self.take_back(chunk))).await
    }

    async fn take_back(&self, chunk: Chunk<'_, JobRef>) -> Result<Vec<(usize, Cancelled)>> {
        let mut call = self.scripts.cancel.on([&*chunk.lane]);
        for (_, job) in &chunk.items {
            call.arg(target(&job.target));
        }
        let answers = reply::bytes(call.run(&self.link, CANCEL).await?).unwrap_or_default();
        let Some((answers, layout)) = answers.split_at_checked(chunk.items.len()) else {
            return unexpected(CANCEL);
        };
        self.hear(&chunk.lane, layout);
        let answers = answers.iter().map(|answer| match answer {
            b'C' => Cancelled::Cancelled,
            b'A' => Cancelled::AlreadyRunning,
            _ => Cancelled::NotFound,
        });
        Ok(chunk.items.iter().map(|(place, _)| *place).zip(answers).collect())
    }

    /// Moves jobs in time.
    pub(crate) async fn reschedule<'a>(
        &'a self,
        moves: &'a [Reschedule],
    ) -> Result<Vec<Rescheduled>> {
        let absent = |answer: &Rescheduled| *answer == Rescheduled::NotFound;
        self.seek(RESCHEDULE, moves, absent, |chunk| Box::pin(self.shift(chunk))).await
    }

    async fn shift(&self, chunk: Chunk<'_, Reschedule>) -> Result<Vec<(usize, Rescheduled)>> {
        let mut call = self.scripts.reschedule.on([&*chunk.lane]);
        call.arg(&chunk.lane.channel);
        for (_, wish) in &chunk.items {
            call.arg(target(&wish.job.target)).arg(due(wish.due));
        }
        let answer = call.run(&self.link, RESCHEDULE).await?;
        let read = |answer| {
            let mut reply = Reply::new(answer)?;
            let mut answers = Vec::with_capacity(chunk.items.len());
            for (place, _) in &chunk.items {
                answers.push((*place, moved(&mut reply)?));
            }
            if !reply.is_empty() {
                self.hear(&chunk.lane, &reply.bytes()?);
            }
            Some(answers)
        };
        match read(answer) {
            Some(answers) => Ok(answers),
            None => unexpected(RESCHEDULE),
        }
    }
}

/// A due time as scripts read it. Delays are rounded up, so that nothing is early.
pub(crate) fn due(due: Due) -> String {
    match due {
        Due::At(at) => at.as_millis().to_string(),
        // From the epoch, so that only the delay is left.
        after @ Due::After(_) => format!("+{}", after.resolve(Timestamp::EPOCH).as_millis()),
    }
}

/// Which job, as scripts read it.
pub(crate) fn target(target: &Target) -> Vec<u8> {
    match target {
        Target::Id(id) => [&b"i"[..], &handle::full(*id)].concat(),
        Target::Key(key) => [b"k", key.as_str().as_bytes()].concat(),
    }
}

/// What a job is placed by.
fn name(job: &NewJob) -> Vec<u8> {
    match &job.key {
        Some(key) => key.as_str().as_bytes().to_vec(),
        None => job.id.to_bytes().to_vec(),
    }
}

fn put_answers(
    answer: Value,
    chunk: &Chunk<'_, NewJob>,
    creates: bool,
) -> Option<(Timestamp, Vec<(usize, Put)>)> {
    let mut reply = Reply::new(answer)?;
    let now = Timestamp::from_millis(reply.number()?);
    let silent = |job: &NewJob| {
        if !creates {
            return Put::Absent;
        }
        Put::Settled(Scheduled::Created(Receipt { id: job.id, due: job.due.resolve(now) }))
    };
    let mut answers: Vec<(usize, Put)> =
        chunk.items.iter().map(|(place, job)| (*place, silent(job))).collect();
    while !reply.is_empty() {
        let number = usize::try_from(reply.number()?).ok()?.checked_sub(1)?;
        let code = reply.bytes()?;
        let receipt = receipt(&mut reply)?;
        answers.get_mut(number)?.1 = Put::Settled(match &code[..] {
            b"K" => Scheduled::Kept(receipt),
            b"R" => Scheduled::Replaced(receipt),
            b"A" => Scheduled::AlreadyRunning(receipt),
            _ => return None,
        });
    }
    Some((now, answers))
}

fn moved(reply: &mut Reply) -> Option<Rescheduled> {
    let code = reply.bytes()?;
    match &code[..] {
        b"M" => Some(Rescheduled::Moved(receipt(reply)?)),
        code => {
            reply.bytes()?;
            reply.number()?;
            match code {
                b"A" => Some(Rescheduled::AlreadyRunning),
                b"N" => Some(Rescheduled::NotFound),
                _ => None,
            }
        }
    }
}

fn receipt(reply: &mut Reply) -> Option<Receipt> {
    let name: Bytes = reply.bytes()?;
    let due = Timestamp::from_millis(reply.number()?);
    let (handle, tail) = name.split_at_checked(HANDLE)?;
    Some(Receipt { id: handle::id(handle, tail)?, due })
}

/// The refusal of a job whose handle is that of another.
fn clash(error: Error, chunk: &Chunk<'_, NewJob>) -> Error {
    let text = error.to_string();
    let number = text.split_once("CLASH ").and_then(|(_, rest)| {
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok()
    });
    match number.and_then(|number| chunk.items.get(number.checked_sub(1)?)) {
        Some((_, job)) => Error::invalid(format!(
            "the id {} of a job for queue {} cannot be told from that of another job there",
            job.id, job.queue
        ))
        .remedy("let the client make the ids, or use random ones")
        .operation(SCHEDULE),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn delays_round_up() {
        assert_eq!(due(Due::After(Duration::from_micros(1))), "+1");
        assert_eq!(due(Due::After(Duration::from_millis(5))), "+5");
        assert_eq!(due(Due::At(Timestamp::from_millis(-3))), "-3");
    }
}
