//! Schedule, cancel and reschedule.

use bytes::Bytes;
use dq_core::{
    Cancelled, Due, Error, JobRef, NewJob, Receipt, Reschedule, Rescheduled, Result, Scheduled,
    Target, Timestamp,
};
use redis::Value;

use crate::batch::{self, Chunk};
use crate::error::unexpected;
use crate::handle::{self, HANDLE};
use crate::record;
use crate::reply::{self, Reply};
use crate::store::Store;

const SCHEDULE: &str = "schedule";
const CANCEL: &str = "cancel";
const RESCHEDULE: &str = "reschedule";

impl Store {
    /// Stores jobs, or says which have their ids or keys.
    pub(crate) async fn schedule<'a>(&'a self, jobs: &'a [NewJob]) -> Result<Vec<Scheduled>> {
        self.register(SCHEDULE, jobs.iter().map(|job| &job.queue)).await?;
        batch::run(&self.lanes, jobs, |chunk| Box::pin(self.put(chunk))).await
    }

    async fn put(&self, chunk: Chunk<'_, NewJob>) -> Result<Vec<(usize, Scheduled)>> {
        let mut call = self.scripts.schedule.on([&*chunk.lane]);
        call.arg(&chunk.lane.channel);
        for (_, job) in &chunk.items {
            call.arg(&handle::handle(job.id)[..]).arg(due(job.due)).arg(record::encode(job));
        }
        let answer = call.run(&self.link, SCHEDULE).await.map_err(|error| clash(error, &chunk))?;
        match put_answers(answer, &chunk) {
            Some(answers) => Ok(answers),
            None => unexpected(SCHEDULE),
        }
    }

    /// Takes jobs back.
    pub(crate) async fn cancel<'a>(&'a self, jobs: &'a [JobRef]) -> Result<Vec<Cancelled>> {
        batch::run(&self.lanes, jobs, |chunk| Box::pin(self.take_back(chunk))).await
    }

    async fn take_back(&self, chunk: Chunk<'_, JobRef>) -> Result<Vec<(usize, Cancelled)>> {
        let mut call = self.scripts.cancel.on([&*chunk.lane]);
        for (_, job) in &chunk.items {
            call.arg(target(&job.target));
        }
        let answers = reply::bytes(call.run(&self.link, CANCEL).await?).unwrap_or_default();
        if answers.len() != chunk.items.len() {
            return unexpected(CANCEL);
        }
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
        batch::run(&self.lanes, moves, |chunk| Box::pin(self.shift(chunk))).await
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
        Due::At(at) => format!("@{}", at.as_millis()),
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

fn put_answers(answer: Value, chunk: &Chunk<'_, NewJob>) -> Option<Vec<(usize, Scheduled)>> {
    let mut reply = Reply::new(answer)?;
    let now = Timestamp::from_millis(reply.number()?);
    let mut answers: Vec<(usize, Scheduled)> = chunk
        .items
        .iter()
        .map(|(place, job)| {
            let receipt = Receipt { id: job.id, due: job.due.resolve(now) };
            (*place, Scheduled::Created(receipt))
        })
        .collect();
    while !reply.is_empty() {
        let number = usize::try_from(reply.number()?).ok()?.checked_sub(1)?;
        let code = reply.bytes()?;
        let receipt = receipt(&mut reply)?;
        answers.get_mut(number)?.1 = match &code[..] {
            b"K" => Scheduled::Kept(receipt),
            b"R" => Scheduled::Replaced(receipt),
            b"A" => Scheduled::AlreadyRunning(receipt),
            _ => return None,
        };
    }
    Some(answers)
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
        assert_eq!(due(Due::At(Timestamp::from_millis(-3))), "@-3");
    }
}
