//! Meeting reminders, stored in RabbitMQ alone. Any process can move or cancel a meeting with its
//! reminder.
//!
//! ```sh
//! alias reminders='cargo run -q -p dq-examples --example rabbitmq_reminders -- --minute 1'
//! reminders remind                # leave it running: here a minute takes one second
//! ```
//!
//! In a second terminal, with the same alias:
//!
//! ```sh
//! reminders plan standup 20       # it starts in 20 minutes, so the reminder is due in 10
//! reminders plan review 40
//! reminders move standup 25
//! reminders off review            # it is cancelled
//! reminders list
//! ```
//!
//! Kill the process in the first terminal, with Ctrl-C or `kill -9`, and start it again: no
//! reminder is lost.

use std::time::Duration;

use clap::{Parser, Subcommand};
use dq::prelude::*;
use serde::{Deserialize, Serialize};

/// Reminds of meetings ten minutes before they start.
#[derive(Parser)]
struct Options {
    /// URL of RabbitMQ.
    #[arg(long, default_value = "amqp://127.0.0.1:5672")]
    url: String,
    /// Length of a minute in seconds.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=60))]
    minute: u32,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Plans a meeting that starts in this many minutes.
    Plan { name: String, minutes: u32 },
    /// Moves a meeting: it starts in this many minutes from now.
    Move { name: String, minutes: u32 },
    /// Cancels a meeting.
    Off { name: String },
    /// Lists the pending reminders.
    List,
    /// Sends reminders when they are due, until Ctrl-C.
    Remind,
}

impl Options {
    fn reminder(&self, minutes: u32) -> Duration {
        const BEFORE: u32 = 10;
        Duration::from_secs(self.minute.into()) * minutes.saturating_sub(BEFORE)
    }
}

#[derive(Serialize, Deserialize)]
struct Meeting {
    name: String,
}

#[delay_handler("MEETING_REMINDER", max_attempts = 5, timeout = "30s")]
async fn remind(ctx: JobContext, meeting: Meeting) {
    // Your application sends a message here.
    println!("{} is about to start ({} ms late)", meeting.name, ctx.lateness().as_millis());
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    let options = Options::parse();
    let dq = Dq::connect(&options.url).await?;
    match &options.command {
        Command::Plan { name, minutes } => {
            // The name is the key: a second plan for the same meeting changes nothing.
            let reminder = dq.schedule::<remind>(Meeting { name: name.clone() });
            match reminder.after(options.reminder(*minutes)).key(name).await? {
                Scheduled::Created(_) => println!("{name} is planned"),
                Scheduled::Kept(_) => println!("{name} is planned already; move it"),
                _ => println!("the reminder of {name} is being sent"),
            }
        }
        Command::Move { name, minutes } => {
            match dq.reschedule::<remind>(name, options.reminder(*minutes)).await? {
                Rescheduled::Moved(_) => println!("{name} is moved"),
                Rescheduled::AlreadyRunning => println!("the reminder of {name} is being sent"),
                _ => println!("there is no reminder of {name}"),
            }
        }
        Command::Off { name } => match dq.cancel::<remind>(name).await? {
            // No process sends it any more, even if it has received the message.
            Cancelled::Cancelled => println!("{name} is cancelled"),
            Cancelled::AlreadyRunning => println!("the reminder of {name} is being sent"),
            _ => println!("there is no reminder of {name}"),
        },
        Command::List => list(&dq).await?,
        Command::Remind => {
            println!("waiting for meetings; Ctrl-C to stop");
            dq.runner().run_until(dq::shutdown_signal()).await?;
        }
    }
    dq.close().await
}

/// Lists running reminders, then ready ones, then the rest by due time.
async fn list(dq: &Dq) -> dq::Result<()> {
    let queue = dq.queue_of::<remind>()?;
    for state in [JobState::Running, JobState::Ready, JobState::Scheduled] {
        // The first page; `.after(page.next)` reads further ones.
        for view in queue.browse(state).limit(1_000).await?.jobs {
            let Meeting { name } = view.payload()?;
            println!("{name}: {state}, due {}", view.job.due);
        }
    }
    Ok(())
}
