use dq_ops::{BackfillReport, ScheduleDefinition, ScheduleDetail, ScheduleResult, ScheduleSummary};
use serde_json::{Value, json};

use super::jobs::payload_text;
use crate::args::{ScheduleArgs, ScheduleSetArgs, SchedulesCommand};
use crate::failure::{CONFLICT, Failure, Result};
use crate::output::Output;
use crate::source::Source;
use crate::text::{self, Table};

pub(super) fn run(
    command: &SchedulesCommand,
    source: &Source,
    output: &mut Output<'_>,
) -> Result<()> {
    match command {
        SchedulesCommand::Ls => list(source, output),
        SchedulesCommand::Show { name, next } => {
            let detail = source.recurring(name, *next)?;
            output.either(&detail, || describe(&detail))
        }
        SchedulesCommand::Set(args) => set(args, source, output),
        SchedulesCommand::Pause(ScheduleArgs { name }) => {
            let changed = source.pause_schedule(name)?;
            let value = json!({ "schedule": name, "paused": true, "changed": changed });
            report(name, &value, if changed { "paused" } else { "was paused before:" }, output)
        }
        SchedulesCommand::Resume(ScheduleArgs { name }) => {
            let changed = source.resume_schedule(name)?;
            let value = json!({ "schedule": name, "paused": false, "changed": changed });
            report(name, &value, if changed { "resumed" } else { "is not paused:" }, output)
        }
        SchedulesCommand::Skip(ScheduleArgs { name }) => {
            source.skip_next(name)?;
            let value = json!({ "schedule": name, "result": "skipped" });
            report(name, &value, "skipped the next occurrence of", output)
        }
        SchedulesCommand::Run(ScheduleArgs { name }) => run_now(name, source, output),
        SchedulesCommand::Backfill { name, after, until } => {
            let BackfillReport { changed, existing, .. } = source.backfill(name, *after, *until)?;
            let value = json!({
                "schedule": name, "action": "backfill", "changed": changed, "existing": existing
            });
            output.either(&value, || {
                let (name, jobs) = (text::clean(name), text::count(changed, "job"));
                let existing = match existing {
                    0 => String::new(),
                    more => format!("; {} had a job before", text::count(more, "occurrence")),
                };
                format!("scheduled {jobs} of {name}{existing}\n")
            })
        }
        SchedulesCommand::Rm(ScheduleArgs { name }) => {
            source.remove_schedule(name)?;
            let value = json!({ "schedule": name, "result": "removed" });
            report(name, &value, "removed", output)
        }
    }
}

fn report(name: &str, value: &Value, done: &str, output: &mut Output<'_>) -> Result<()> {
    output.either(value, || format!("{done} {}\n", text::clean(name)))
}

fn list(source: &Source, output: &mut Output<'_>) -> Result<()> {
    let schedules = source.schedules()?;
    if output.is_json() {
        return schedules.iter().try_for_each(|schedule| output.json(schedule));
    }
    if schedules.is_empty() {
        output.note("there is no schedule");
        return Ok(());
    }
    let mut table = Table::new(&["SCHEDULE", "QUEUE", "TIMES", "NEXT DUE", "STATE"]);
    let row = |schedule: &ScheduleSummary| {
        vec![
            text::clean(&schedule.name),
            text::clean(schedule.queue.as_str()),
            text::clean(&times(schedule)),
            if schedule.paused || schedule.stopped {
                "–".to_owned()
            } else {
                schedule.next_due.to_string()
            },
            state(schedule).to_owned(),
        ]
    };
    output.text(&table.rows(&schedules.iter().map(row).collect::<Vec<_>>()))
}

fn times(schedule: &ScheduleSummary) -> String {
    match (&schedule.cron, schedule.every_ms) {
        (Some(cron), _) => format!("{cron} {}", schedule.tz.as_deref().unwrap_or_default()),
        (None, Some(millis)) => format!("every {}", text::duration(millis)),
        (None, None) => String::new(),
    }
}

fn state(schedule: &ScheduleSummary) -> &'static str {
    match (schedule.paused, schedule.stopped, schedule.orphaned) {
        (true, ..) => "paused",
        (_, true, _) => "stopped",
        (_, _, true) => "orphaned",
        _ => "active",
    }
}

fn describe(detail: &ScheduleDetail) -> String {
    let schedule = &detail.schedule;
    let mut text = String::new();
    let mut line = |name: &str, value: String| text += &format!("{name:<10} {value}\n");
    line("schedule", text::clean(&schedule.name));
    line("queue", text::clean(schedule.queue.as_str()));
    line("times", text::clean(&times(schedule)));
    line("state", state(schedule).to_owned());
    line("catch up", schedule.catch_up.clone());
    line("overlap", schedule.overlap.clone());
    for (name, millis) in [("deadline", schedule.deadline_ms), ("jitter", schedule.jitter_ms)] {
        if let Some(millis) = millis {
            line(name, text::duration(millis));
        }
    }
    if let Some(generation) = schedule.generation {
        line("generation", generation.to_string());
    }
    for (number, next) in detail.next.iter().enumerate() {
        let local = next.local.as_ref().map(|local| format!("   {local}")).unwrap_or_default();
        line(if number == 0 { "next" } else { "" }, format!("{}{local}", next.due));
    }
    match &detail.payload {
        Some(payload) => {
            line("payload", text::count(payload.size, "byte"));
            text += &payload_text(payload);
        }
        None => line("payload", "hidden from the role of this token".to_owned()),
    }
    text
}

fn set(args: &ScheduleSetArgs, source: &Source, output: &mut Output<'_>) -> Result<()> {
    let payload = serde_json::from_str(&args.payload).map_err(|error| {
        Failure::usage(format!("the payload is not JSON: {error}"), "write a text as '\"text\"'")
    })?;
    let mut definition = ScheduleDefinition::default();
    definition.queue = args.queue.to_string();
    definition.cron.clone_from(&args.cron);
    definition.tz.clone_from(&args.tz);
    definition.every.clone_from(&args.every);
    definition.payload = payload;
    definition.schema_version = args.schema_version;
    definition.catch_up.clone_from(&args.catch_up);
    definition.overlap.clone_from(&args.overlap);
    definition.deadline.clone_from(&args.deadline);
    definition.jitter.clone_from(&args.jitter);
    let changed = source.put_schedule(&args.name, &definition)?;
    let value = json!({ "schedule": args.name, "changed": changed });
    report(&args.name, &value, if changed { "stored" } else { "is stored already:" }, output)
}

fn run_now(name: &str, source: &Source, output: &mut Output<'_>) -> Result<()> {
    let job = source.run_schedule(name)?;
    output.either(&job, || {
        let name = text::clean(name);
        match job.result {
            ScheduleResult::AlreadyRunning => {
                format!("not scheduled: job {} of {name} is running\n", job.id)
            }
            _ if job.is_stored() => format!("scheduled {} of {name}, due {}\n", job.id, job.due),
            _ => format!("not scheduled: job {} of {name} waits, due {}\n", job.id, job.due),
        }
    })?;
    match job.is_stored() {
        true => Ok(()),
        false => Err(Failure::Reported(CONFLICT)),
    }
}
