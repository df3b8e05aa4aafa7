//! The commands: functions of a source and an output.

mod change;
#[cfg(feature = "postgres")]
pub(crate) mod copy;
mod enqueue;
mod forecast;
#[cfg(feature = "redis")]
pub(crate) mod import;
mod jobs;
pub(crate) mod migrate;
mod queues;
mod runners;
mod schedules;
mod timeline;
mod watch;

#[cfg(test)]
mod tests;

use clap_complete::Shell;
use dq_core::Due;
use dq_ops::BulkAction;

use self::change::change;
use crate::args::{self, Command, JobsCommand};
use crate::failure::Result;
use crate::output::Output;
use crate::source::Source;

pub(crate) fn run(command: &Command, source: &Source, output: &mut Output<'_>) -> Result<()> {
    match command {
        Command::Queues { queue } => queues::list(queue.as_ref(), source, output),
        Command::Pause { queue, create } => queues::pause(queue, *create, source, output),
        Command::Resume { queue } => queues::resume(queue, source, output),
        Command::Limit(args) => queues::limit(args, source, output),
        Command::Purge { queue, confirm } => {
            queues::purge(queue, confirm.as_deref(), source, output)
        }
        Command::Jobs(command) => match command {
            JobsCommand::Ls(args) => jobs::list(args, source, output),
            JobsCommand::Get(args) => jobs::get(args, source, output),
            JobsCommand::Find(args) => jobs::find(args, source, output),
            JobsCommand::Cancel(args) => change(args, BulkAction::Cancel, source, output),
            JobsCommand::Move(args) => {
                change(&args.change, BulkAction::Reschedule(args.to), source, output)
            }
            JobsCommand::Run(args) => {
                change(args, BulkAction::Reschedule(Due::NOW), source, output)
            }
            JobsCommand::Replay(args) => change(args, BulkAction::Replay, source, output),
            JobsCommand::Rm(args) => change(args, BulkAction::Remove, source, output),
        },
        Command::Enqueue(args) => enqueue::enqueue(args, source, output),
        Command::Where(args) => timeline::timeline(args, source, output),
        Command::Schedules(command) => schedules::run(command, source, output),
        Command::Forecast { queue, window } => {
            forecast::forecast(queue.as_ref(), *window, source, output)
        }
        Command::Simulate(args) => forecast::simulate(args, source, output),
        Command::Watch(args) => watch::watch(args, source, output),
        Command::Runners => runners::list(source, output),
        Command::Check => runners::check(source, output),
        // These need no source, or need a store.
        Command::Serve(_) | Command::Health | Command::Migrate(_) | Command::Completions { .. } => {
            Ok(())
        }
        #[cfg(any(feature = "postgres", feature = "redis"))]
        Command::Import(_) => Ok(()),
    }
}

pub(crate) fn completions(shell: Shell, output: &mut Output<'_>) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command(), "dq", &mut script);
    output.text(&String::from_utf8_lossy(&script))
}
