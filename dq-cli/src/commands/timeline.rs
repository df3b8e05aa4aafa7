//! `dq where`: a job's past, and why it does not run now.

use dq_core::{JobState, LatenessCause, Timestamp, format_duration};
use dq_ops::{EventKind, JobSummary, Presence, Timeline, WaitReason};

use crate::args::JobArgs;
use crate::failure::Result;
use crate::output::Output;
use crate::source::Source;
use crate::text;

pub(super) fn timeline(args: &JobArgs, source: &Source, output: &mut Output<'_>) -> Result<()> {
    let timeline = source.timeline(&args.queue, &args.job)?;
    output.either(&timeline, || describe(&timeline))
}

fn describe(timeline: &Timeline) -> String {
    let (job, now) = (&timeline.job, timeline.at);
    let name = job.key.clone().unwrap_or_else(|| job.id.to_string());
    let queue = text::clean(job.queue.as_str());
    let mut text = format!("{queue}/{}   {}\n", text::clean(&name), headline(timeline));
    let mut lines: Vec<(String, String)> = timeline
        .events
        .iter()
        .map(|event| {
            let at = event.at.map_or_else(|| "-".to_owned(), |at| text::time(at, now));
            (at, describe_event(&event.kind, job, now))
        })
        .collect();
    if let Some(reason) = &timeline.now {
        lines.push(("now".to_owned(), describe_wait(reason, &timeline.presence)));
    }
    let width = lines.iter().map(|(at, _)| at.chars().count()).max().unwrap_or(0);
    for (at, what) in lines {
        text += &format!("  {at:<width$}  {what}\n");
    }
    text
}

fn headline(timeline: &Timeline) -> String {
    let (job, now) = (&timeline.job, timeline.at);
    if let Some(ended) = &job.ended {
        let ago = format_duration(now.since(ended.at));
        return format!("{} {ago} ago", ended.ending.as_str());
    }
    if let Some(dead) = &job.dead {
        return format!("dead for {}", format_duration(now.since(dead.at)));
    }
    let mut parts = vec![job.state.to_string()];
    if timeline.step > 0 {
        parts.push(format!("step {} of its escalation", timeline.step));
    }
    if job.attempts > 0 {
        parts.push(match job.max_attempts.and_then(|max| max.checked_sub(1)) {
            Some(retries) => format!("retry {} of {retries}", job.attempts),
            None => format!("retry {}", job.attempts),
        });
    }
    match job.state {
        JobState::Running => {
            parts
                .extend(job.claimed_at.map(|at| format!("for {}", format_duration(now.since(at)))));
        }
        _ if job.due > now => parts.push(format!("due in {}", format_duration(job.due.since(now)))),
        _ => parts.push(format!("due {} ago", format_duration(now.since(job.due)))),
    }
    parts.join(", ")
}

fn describe_event(kind: &EventKind, job: &JobSummary, now: Timestamp) -> String {
    match kind {
        EventKind::Scheduled => "scheduled".to_owned(),
        EventKind::Due => "due".to_owned(),
        EventKind::Claimed { worker, late_ms } => {
            let worker = worker.as_deref().map(|worker| format!(" by {}", text::clean(worker)));
            let late = late_ms.map(|late| format!(", {} late", text::duration(late)));
            format!("claimed{}{}", worker.unwrap_or_default(), late.unwrap_or_default())
        }
        EventKind::Lost { times } => {
            format!("claimed without a result, {}", text::count(u64::from(*times), "time"))
        }
        EventKind::Failed { error, attempt } => {
            let retry = match job.state {
                JobState::Scheduled if job.due > now => {
                    format!("; retry at {}", text::time(job.due, now))
                }
                _ => String::new(),
            };
            format!("failed, attempt {attempt}: {}{retry}", text::clean(error))
        }
        EventKind::Dead { reason, attempt } => {
            let attempt = attempt.map(|attempt| format!(", attempt {attempt}"));
            format!("dead{}: {}", attempt.unwrap_or_default(), text::clean(reason))
        }
        EventKind::Ended { ending, reason } => match reason {
            Some(reason) => format!("{}: {}", text::clean(ending), text::clean(reason)),
            None => text::clean(ending),
        },
        _ => "an event of a later version".to_owned(),
    }
}

fn describe_wait(reason: &WaitReason, presence: &Presence) -> String {
    let first = match reason {
        WaitReason::NotDue { .. } => "not due".to_owned(),
        WaitReason::Paused => "the queue is paused".to_owned(),
        WaitReason::NoRunner => "no runner listens".to_owned(),
        WaitReason::MaxRunning => LatenessCause::MaxRunning.to_string(),
        WaitReason::Rate => LatenessCause::Rate.to_string(),
        WaitReason::Throttled => LatenessCause::Throttled.to_string(),
        WaitReason::GroupFull { group, running } => {
            format!("{} of its group {} run, the most at once", running, text::clean(group))
        }
        WaitReason::NoFreeSlot => "no free slot".to_owned(),
        WaitReason::Claimable => {
            "about to be claimed, unless the runner was killed in the last minute".to_owned()
        }
        WaitReason::Unknown => "due; whether a runner listens is not known".to_owned(),
        WaitReason::Running { worker: Some(worker) } => format!("runs on {}", text::clean(worker)),
        WaitReason::Running { worker: None } => "runs".to_owned(),
        WaitReason::Dead => "dead until it is replayed or removed".to_owned(),
        _ => "waits for a reason of a later version".to_owned(),
    };
    let mut parts = vec![first];
    if presence.paused && !matches!(reason, WaitReason::Paused) {
        parts.push("the queue is paused".to_owned());
    }
    if let (Some(runners), Some(free), Some(slots)) =
        (presence.runners, presence.free_slots, presence.slots)
    {
        match runners {
            0 if matches!(reason, WaitReason::NoRunner) => {}
            // A runner that is not announced for this queue may serve it.
            0 if presence.incomplete => {}
            0 => parts.push("no runner listens".to_owned()),
            1 => parts.push("1 runner listens".to_owned()),
            _ => parts.push(format!("{runners} runners listen")),
        }
        // A job that runs or is dead waits for no slot.
        if runners > 0 && !matches!(reason, WaitReason::Running { .. } | WaitReason::Dead) {
            parts.push(format!("{free} of {slots} slots free"));
        }
    }
    match parts.split_first() {
        Some((first, rest)) if !rest.is_empty() => format!("{first}; {}", rest.join(", ")),
        _ => parts.concat(),
    }
}
