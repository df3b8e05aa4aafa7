//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args as ClapArgs, Parser, Subcommand};
use clap_complete::Shell;
use dq_core::{Due, JobState, OnConflict, OnRunning, QueueName, Rate, Target, Timestamp};
use dq_ops::{JobFilter, parse_due, parse_duration, parse_target, parse_timestamp};

use crate::parse::{
    OrNone, at_least_one, by, header, max_running, queue, rate, state, token, word,
};

const AFTER_HELP: &str = "\
Commands use the store of --config or --url; otherwise the one that dq.toml in the current directory
or the environment (DQ_BACKEND__TYPE) names, or the file dq.db there. With --api they use a server.
Without --api and --token, DQ_API and DQ_TOKEN count.

Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 conflict, 5 unreachable.";

/// Delayed jobs: serve, inspect and operate.
#[derive(Debug, Parser)]
#[command(name = "dq", version, after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where the jobs are.
#[derive(Debug, Default, ClapArgs)]
#[command(next_help_heading = "Store and output")]
pub(crate) struct TargetArgs {
    /// Configuration file of the store.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// URL of the store, such as sqlite://jobs.db.
    #[arg(long, global = true)]
    pub(crate) url: Option<String>,
    /// Address of a server, such as http://127.0.0.1:7373.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) api: Option<String>,
    /// Token for the server; DQ_TOKEN is safer, because others can see arguments.
    // A user-chosen token may begin with a hyphen; a token from `dq serve` never does.
    #[arg(long, global = true, allow_hyphen_values = true, value_parser = token)]
    pub(crate) token: Option<String>,
    /// Print one JSON value a line instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the dashboard and the HTTP API.
    Serve(ServeArgs),
    /// Show all queues, or one.
    Queues {
        /// The queue; all queues if absent.
        #[arg(value_parser = queue)]
        queue: Option<QueueName>,
    },
    /// Show and change jobs.
    #[command(subcommand)]
    Jobs(JobsCommand),
    /// Schedule a job.
    Enqueue(EnqueueArgs),
    /// Show what happened to a job, and why it does not run now.
    Where(JobArgs),
    /// Show and change schedules.
    #[command(subcommand, visible_alias = "cron")]
    Schedules(SchedulesCommand),
    /// Show what is due in the next hours: all queues, or one queue by hour.
    Forecast {
        /// The queue; all queues if absent.
        #[arg(value_parser = queue)]
        queue: Option<QueueName>,
        /// How far to look ahead; one minute to seven days.
        #[arg(long, default_value = "24h", value_parser = by(parse_duration))]
        window: Duration,
    },
    /// Simulate the next hours on a virtual clock: how late jobs start, and when a backlog is
    /// drained.
    Simulate(SimulateArgs),
    /// Show all queues, or one, and refresh until Ctrl-C.
    Watch(WatchArgs),
    /// Show the runners.
    Runners,
    /// Stop a queue in all processes; running jobs finish.
    Pause {
        /// The queue.
        #[arg(value_parser = queue)]
        queue: QueueName,
        /// Pause the queue even if nobody uses it yet; without this, its name counts as misspelt.
        #[arg(long)]
        create: bool,
    },
    /// Start a paused queue.
    Resume {
        /// The queue.
        #[arg(value_parser = queue)]
        queue: QueueName,
    },
    /// Limit a queue in all processes, in place of the limits that its runners declare.
    Limit(LimitArgs),
    /// Delete all jobs of a queue, except running jobs.
    Purge {
        /// The queue.
        #[arg(value_parser = queue)]
        queue: QueueName,
        /// The queue name again; read from stdin if absent.
        #[arg(long, value_name = "QUEUE")]
        confirm: Option<String>,
    },
    /// Show problems of the store and missed objectives. Fails if one is an error.
    Check,
    /// Ask a server whether it and its store answer: --api, DQ_API, or http://127.0.0.1:7373. Needs
    /// no token.
    Health,
    /// Create the store's schema in PostgreSQL, or bring it up to date.
    Migrate(MigrateArgs),
    /// Bring jobs from another system into queues, each exactly once.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    #[command(subcommand)]
    Import(ImportCommand),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ServeArgs {
    /// Address to listen on [default: 127.0.0.1:7373].
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) address: Option<String>,
    /// Serve a store in memory, with example queues and changing jobs.
    #[arg(long, conflicts_with_all = ["config", "url"])]
    pub(crate) demo: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct MigrateArgs {
    /// Print the SQL, without a connection, instead of running it.
    #[arg(long)]
    pub(crate) print: bool,
    /// Also grant this role the rights to use the store.
    #[arg(long, value_name = "ROLE", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) grant: Option<String>,
}

/// Where the jobs come from.
#[cfg(any(feature = "postgres", feature = "redis"))]
#[derive(Debug, Subcommand)]
pub(crate) enum ImportCommand {
    /// From tables in PostgreSQL, which a query reads and nothing changes.
    #[cfg(feature = "postgres")]
    Postgres(QueryArgs),
    #[cfg(feature = "redis")]
    #[command(flatten)]
    Redis(RedisImport),
}

/// From Redis, where the jobs are moved.
#[cfg(feature = "redis")]
#[derive(Debug, Subcommand)]
pub(crate) enum RedisImport {
    /// From a sorted set with payloads as members and due times as scores.
    RedisZset {
        #[command(flatten)]
        from: ImportArgs,
        /// Key of the sorted set.
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        key: String,
        /// The queue for the jobs.
        #[arg(long, value_parser = queue)]
        queue: QueueName,
        /// Unit of the scores, which are Unix times.
        #[arg(long, default_value = "millis", value_parser = ["millis", "seconds"])]
        scores: String,
    },
    /// From a Redisson delayed queue, including its destination queue.
    Redisson {
        #[command(flatten)]
        from: ImportArgs,
        /// The queue name, with the NameMapper's prefix.
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// The queue for the jobs [default: the same name].
        #[arg(long, value_parser = queue)]
        queue: Option<QueueName>,
        /// Codec of the Java clients: json, string, jackson, kryo5, or raw for unchecked bytes.
        #[arg(long, value_parser = by(str::parse::<dq_redis::Codec>))]
        codec: dq_redis::Codec,
    },
}

/// Arguments of all imports.
#[cfg(any(feature = "postgres", feature = "redis"))]
#[derive(Debug, ClapArgs)]
pub(crate) struct ImportArgs {
    /// URL of the server, such as postgres://localhost/shop or redis://localhost:6379/0.
    #[arg(long, value_name = "URL")]
    pub(crate) from: String,
    /// Import the jobs; without this, only count them.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Only count the jobs, and succeed.
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
}

#[cfg(feature = "postgres")]
#[derive(Debug, ClapArgs)]
pub(crate) struct QueryArgs {
    #[command(flatten)]
    pub(crate) from: ImportArgs,
    /// A SELECT with the columns id, queue, payload and due, and perhaps key, headers and
    /// max_attempts.
    #[arg(long, value_name = "SQL", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) query: String,
    /// The queue for the jobs, in place of a column.
    #[arg(long, value_parser = queue)]
    pub(crate) queue: Option<QueueName>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// List jobs.
    Ls(ListArgs),
    /// Show one job with payload and headers.
    Get(JobArgs),
    /// Find jobs by id, key prefix, or payload text.
    Find(FindArgs),
    /// Cancel a waiting job, or all matching jobs.
    Cancel(ChangeArgs),
    /// Change the due time of a waiting job, or of all matching jobs.
    Move(MoveArgs),
    /// Make a waiting job due now, or all matching jobs.
    Run(ChangeArgs),
    /// Make a dead job due now with all its attempts, or all matching jobs.
    Replay(ChangeArgs),
    /// Remove a dead job, or all matching jobs.
    Rm(ChangeArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum SchedulesCommand {
    /// List the schedules, the next due first.
    Ls,
    /// Show one schedule with its payload and next occurrences.
    Show {
        /// The schedule.
        name: String,
        /// How many next occurrences to show; up to 100.
        #[arg(long, default_value_t = 5)]
        next: usize,
    },
    /// Store a schedule, or replace it.
    Set(ScheduleSetArgs),
    /// Pause a schedule; occurrences during the pause are not caught up.
    Pause(ScheduleArgs),
    /// Resume a paused schedule with its next occurrence.
    Resume(ScheduleArgs),
    /// Skip the next occurrence.
    Skip(ScheduleArgs),
    /// Schedule one of the schedule's jobs now, beside its occurrences.
    Run(ScheduleArgs),
    /// Schedule past occurrences now, at most 1,000.
    Backfill {
        /// The schedule.
        name: String,
        /// Only occurrences after this time.
        #[arg(long, value_name = "TIME", value_parser = by(parse_timestamp))]
        after: Timestamp,
        /// Only occurrences until this time.
        #[arg(long, value_name = "TIME", value_parser = by(parse_timestamp))]
        until: Timestamp,
    },
    /// Remove a schedule; jobs of earlier occurrences still run.
    Rm(ScheduleArgs),
}

/// One schedule.
#[derive(Debug, ClapArgs)]
pub(crate) struct ScheduleArgs {
    /// The schedule.
    pub(crate) name: String,
}

/// Definition of a schedule.
#[derive(Debug, ClapArgs)]
pub(crate) struct ScheduleSetArgs {
    /// The schedule.
    pub(crate) name: String,
    /// The queue for its jobs.
    #[arg(value_parser = queue)]
    pub(crate) queue: QueueName,
    /// The payload of each job, as JSON.
    #[arg(default_value = "null", allow_negative_numbers = true)]
    pub(crate) payload: String,
    /// A cron expression, such as "30 2 * * *".
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) cron: Option<String>,
    /// Time zone of the cron expression [default: UTC].
    #[arg(long, value_name = "ZONE", requires = "cron")]
    pub(crate) tz: Option<String>,
    /// The interval, such as 90s.
    #[arg(
        long,
        value_name = "DURATION",
        conflicts_with = "cron",
        required_unless_present = "cron"
    )]
    pub(crate) every: Option<String>,
    /// Version of the payload's schema.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) schema_version: Option<u32>,
    /// What happens to missed occurrences: last, none, or a limit such as all:10 [default: last].
    #[arg(long)]
    pub(crate) catch_up: Option<String>,
    /// What happens while an earlier job is live: skip, allow or queue_one.
    #[arg(long)]
    pub(crate) overlap: Option<String>,
    /// How late an occurrence may be scheduled, such as 1h.
    #[arg(long, value_name = "DURATION")]
    pub(crate) deadline: Option<String>,
    /// Delay all occurrences by the same fixed part of this time, such as 10s.
    #[arg(long, value_name = "DURATION")]
    pub(crate) jitter: Option<String>,
}

/// Parameters of a simulation.
#[derive(Debug, ClapArgs)]
pub(crate) struct SimulateArgs {
    /// How far to simulate; up to 31 days.
    #[arg(long, default_value = "24h", value_name = "DURATION")]
    pub(crate) window: String,
    /// Start of the window, in the future; now by default.
    #[arg(long, value_name = "TIME")]
    pub(crate) start: Option<String>,
    /// How many copies of each job to simulate.
    #[arg(long, default_value_t = 1)]
    pub(crate) load: u32,
    /// Jobs that run at once, in one queue (MAIL=8) or in queues without a runner (8).
    #[arg(long, value_name = "[QUEUE=]NUMBER")]
    pub(crate) concurrency: Vec<String>,
    /// How long each job runs, in one queue (MAIL=300ms) or in queues without a measured time
    /// (300ms).
    #[arg(long, value_name = "[QUEUE=]DURATION")]
    pub(crate) run_time: Vec<String>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct WatchArgs {
    /// The queue; all queues if absent.
    #[arg(value_parser = queue)]
    pub(crate) queue: Option<QueueName>,
    /// Time between readings.
    #[arg(long, default_value = "2s", value_parser = by(parse_duration))]
    pub(crate) interval: Duration,
    /// Stop after this many readings.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) count: Option<u64>,
}

/// One job.
#[derive(Debug, ClapArgs)]
pub(crate) struct JobArgs {
    /// The queue.
    #[arg(value_parser = queue)]
    pub(crate) queue: QueueName,
    /// The id, or key:KEY.
    #[arg(value_parser = by(parse_target))]
    pub(crate) job: Target,
}

/// Which jobs to list.
#[derive(Debug, ClapArgs)]
pub(crate) struct ListArgs {
    /// The queue; all queues if absent.
    #[arg(value_parser = queue)]
    pub(crate) queue: Option<QueueName>,
    /// running, ready, scheduled, dead or ended; by default all except ended.
    #[arg(long, value_parser = state, value_delimiter = ',')]
    pub(crate) state: Vec<JobState>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Only jobs whose payload contains this text.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) contains: Option<String>,
    /// Maximum number of jobs.
    #[arg(long, default_value_t = 100, conflicts_with = "all", value_parser = at_least_one)]
    pub(crate) limit: usize,
    /// List all jobs.
    #[arg(long)]
    pub(crate) all: bool,
    /// Latest first.
    #[arg(long)]
    pub(crate) desc: bool,
}

/// Selects jobs in a queue; they must match all parts.
#[derive(Debug, Default, ClapArgs)]
pub(crate) struct FilterArgs {
    /// Only jobs whose key begins with this text.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    key_prefix: Option<String>,
    /// Only jobs due at this time or later.
    #[arg(long, value_name = "TIME", value_parser = by(parse_timestamp))]
    due_from: Option<Timestamp>,
    /// Only jobs due before this time.
    #[arg(long, value_name = "TIME", value_parser = by(parse_timestamp))]
    due_before: Option<Timestamp>,
    /// Only jobs whose last error or reason contains this text.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    error: Option<String>,
}

impl FilterArgs {
    pub(crate) fn filter(&self) -> JobFilter {
        let mut filter = JobFilter::default();
        filter.key_prefix.clone_from(&self.key_prefix);
        filter.due_from = self.due_from;
        filter.due_before = self.due_before;
        filter.error.clone_from(&self.error);
        filter
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct FindArgs {
    /// An id, a key prefix, or a payload text.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) text: String,
    /// Search only this queue.
    #[arg(long, value_parser = queue)]
    pub(crate) queue: Option<QueueName>,
    /// Maximum number of jobs.
    #[arg(long, default_value_t = 20, value_parser = at_least_one)]
    pub(crate) limit: usize,
}

/// Which jobs to change.
#[derive(Debug, ClapArgs)]
pub(crate) struct ChangeArgs {
    /// The queue.
    #[arg(value_parser = queue)]
    pub(crate) queue: QueueName,
    /// The id, or key:KEY; if absent, the options below select many jobs.
    #[arg(value_parser = by(parse_target))]
    pub(crate) job: Option<Target>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// All jobs of the queue that this command can change.
    #[arg(long)]
    pub(crate) all: bool,
    /// Change many jobs; without this, only count them.
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct MoveArgs {
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
    /// A delay such as 15m, a time such as 2027-01-31T10:00:00Z, or now.
    #[arg(long, visible_alias = "due", value_parser = by(parse_due))]
    pub(crate) to: Due,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct EnqueueArgs {
    /// The queue.
    #[arg(value_parser = queue)]
    pub(crate) queue: QueueName,
    /// The payload, JSON unless --content-type says otherwise; - reads it from stdin.
    #[arg(default_value = "null", allow_negative_numbers = true)]
    pub(crate) payload: String,
    /// A delay such as 15m, a time such as 2027-01-31T10:00:00Z, or now.
    #[arg(long, default_value = "now", value_parser = by(parse_due))]
    pub(crate) due: Due,
    /// The key.
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// The group, such as a customer.
    #[arg(long)]
    pub(crate) group: Option<String>,
    /// If a waiting job has the key: keep, replace, earliest or latest.
    #[arg(long, default_value = "keep", value_parser = word::<OnConflict>)]
    pub(crate) on_conflict: OnConflict,
    /// If a running job has the key: refuse or detach.
    #[arg(long, default_value = "refuse", value_parser = word::<OnRunning>)]
    pub(crate) on_running: OnRunning,
    /// A header; may be repeated.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    pub(crate) headers: Vec<(String, String)>,
    /// Maximum number of attempts.
    #[arg(long)]
    pub(crate) max_attempts: Option<u32>,
    /// A name for this request, so that you can repeat it without storing a second job.
    #[arg(long, value_name = "NAME")]
    pub(crate) idempotency_key: Option<String>,
    /// How long the store remembers the id after the job ends, such as 7d.
    #[arg(long, value_name = "DURATION")]
    pub(crate) remember: Option<String>,
    /// MIME type of the payload.
    #[arg(long, default_value = "application/json", value_name = "TYPE")]
    pub(crate) content_type: String,
}

#[derive(Debug, ClapArgs)]
#[command(group(ArgGroup::new("change").required(true).multiple(true)))]
pub(crate) struct LimitArgs {
    /// The queue.
    #[arg(value_parser = queue)]
    pub(crate) queue: QueueName,
    /// How many jobs run at once, or "none" for no limit; without it, as before.
    #[arg(long, value_name = "N", value_parser = max_running, group = "change")]
    pub(crate) max_running: Option<OrNone<u32>>,
    /// How many jobs of each group run at once, or "none"; without it, as before.
    #[arg(long, value_name = "N", value_parser = max_running, group = "change")]
    pub(crate) group_max_running: Option<OrNone<u32>>,
    /// How fast jobs start, such as "10/1s" or "10/1s burst 20", or "none"; without it, as before.
    #[arg(long, value_parser = rate, group = "change")]
    pub(crate) rate: Option<OrNone<Rate>>,
    /// Let the limits count again that the runners declare.
    #[arg(
        long,
        group = "change",
        conflicts_with_all = ["max_running", "group_max_running", "rate"]
    )]
    pub(crate) clear: bool,
}

/// The command line, for completions.
pub(crate) fn command() -> clap::Command {
    <Args as clap::CommandFactory>::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_described(command: &clap::Command) {
        for argument in command.get_arguments() {
            let (command, name) = (command.get_name(), argument.get_id());
            assert!(argument.get_help().is_some(), "`{name}` of `dq {command}` has no help text");
        }
        command.get_subcommands().for_each(assert_described);
    }

    #[test]
    fn every_argument_of_every_command_has_a_help_text() {
        assert_described(&command());
    }
}
