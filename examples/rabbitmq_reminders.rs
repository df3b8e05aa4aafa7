//! Meetings and the reminders for them, on a RabbitMQ and nothing else: moved when a meeting moves,
//! and gone for good when it is called off, whichever process asks for it.
//!
//! ```sh
//! alias reminders='cargo run -q --example rabbitmq_reminders --features rabbitmq -- --minute 1'
//! reminders remind                # leave it running: here a minute takes one second
//! ```
//!
//! and in a second terminal, with the same alias:
//!
//! ```sh
//! reminders plan standup 20       # it starts in 20 minutes, so the reminder is due in 10
//! reminders plan review 40
//! reminders move standup 25
//! reminders off review
//! reminders list
//! ```
//!
//! Kill the first one, with Ctrl-C or `kill -9`, and start it again: no reminder is lost.

use std::process::ExitCode;
use std::time::Duration;

use dq::prelude::*;
use dq::{ErrorKind, JobState};
use serde::{Deserialize, Serialize};

const USAGE: &str = "\
Reminds of meetings ten minutes before they start.

usage: rabbitmq_reminders [--url URL] [--minute SECONDS] COMMAND

  plan NAME MINUTES  a meeting starts in so many minutes
  move NAME MINUTES  it starts then instead
  off NAME           it is called off
  list               the reminders that are to be given
  remind             gives them when they are due, until Ctrl-C

  --url URL          where RabbitMQ is (default: amqp://127.0.0.1:5672)
  --minute SECONDS   how long a minute takes, 0.01 to 60 (default: 60)
  --help             this text";

/// Minutes before the start.
const BEFORE: f64 = 10.0;

/// More than anybody plans: a year.
const FAR: f64 = 366.0 * 24.0 * 60.0;

#[derive(Serialize, Deserialize)]
struct Meeting {
    name: String,
}

#[delay_handler("MEETING_REMINDER", max_attempts = 5, timeout = "30s")]
async fn remind(ctx: JobContext, meeting: Meeting) {
    // This is where a mail or a message would be sent.
    println!("{} is about to start ({} ms late)", meeting.name, ctx.lateness().as_millis());
}

async fn run(options: Options) -> dq::Result<()> {
    let dq = Dq::connect(&options.url).await?;
    match options.command {
        Command::Plan(name, start) => {
            // The name is the key: of two plans for one meeting, the first stays.
            let reminder = dq.schedule::<remind>(Meeting { name: name.clone() });
            match reminder.after(start.reminder(options.minute)).key(&name).await? {
                Scheduled::Kept(_) => println!("{name} is planned already; move it"),
                _ => println!("{name} is planned"),
            }
        }
        Command::Move(name, start) => {
            match dq.reschedule::<remind>(&name, start.reminder(options.minute)).await? {
                Rescheduled::Moved(_) => println!("{name} is moved"),
                Rescheduled::AlreadyRunning => println!("the reminder of {name} is being given"),
                _ => println!("no reminder of {name} is to be given"),
            }
        }
        Command::Off(name) => match dq.cancel::<remind>(&name).await? {
            // From now on no process gives it, not even one that has the message already.
            Cancelled::Cancelled => println!("{name} is called off"),
            Cancelled::AlreadyRunning => println!("the reminder of {name} is being given"),
            _ => println!("no reminder of {name} is to be given"),
        },
        Command::List => list(&dq).await?,
        Command::Remind => {
            println!("waiting for meetings; Ctrl-C to stop");
            let stop = async {
                tokio::signal::ctrl_c().await.ok();
            };
            dq.runner().run_until(stop).await?;
        }
    }
    dq.close().await
}

/// What RabbitMQ itself cannot show: the messages that wait in it, by name and in order.
async fn list(dq: &Dq) -> dq::Result<()> {
    let queue = dq.queue_of::<remind>()?;
    for state in [JobState::Running, JobState::Ready, JobState::Scheduled] {
        let mut from = None;
        loop {
            let page = queue.browse(state, from, 100).await?;
            for view in page.jobs {
                let name = view.job.key.as_ref().map_or("?", |key| key.as_str());
                println!("{name}: {state}, due {}", view.job.due);
            }
            from = page.next;
            if from.is_none() {
                break;
            }
        }
    }
    Ok(())
}

/// In how many minutes a meeting starts.
struct Start(f64);

impl Start {
    fn reminder(&self, minute: Duration) -> Duration {
        minute.mul_f64((self.0 - BEFORE).max(0.0))
    }
}

enum Command {
    Plan(String, Start),
    Move(String, Start),
    Off(String),
    List,
    Remind,
}

struct Options {
    url: String,
    minute: Duration,
    command: Command,
}

impl Options {
    /// `None` when only help was wanted.
    fn parse() -> Result<Option<Self>, lexopt::Error> {
        use lexopt::prelude::{Long, Short, Value, ValueExt};
        let mut parser = lexopt::Parser::from_env();
        let (mut url, mut minute) = ("amqp://127.0.0.1:5672".to_owned(), 60.0);
        let mut words = Vec::new();
        while let Some(option) = parser.next()? {
            match option {
                Long("url") => url = parser.value()?.string()?,
                Long("minute") => minute = parser.value()?.parse()?,
                Long("help") | Short('h') => return Ok(None),
                Value(word) => words.push(word.string()?),
                other => return Err(other.unexpected()),
            }
        }
        if !(0.01..=60.0).contains(&minute) {
            return Err(format!("--minute is {minute}; it must be 0.01 to 60 seconds").into());
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let command = match words[..] {
            ["plan", name, start] => Command::Plan(name.to_owned(), minutes(start)?),
            ["move", name, start] => Command::Move(name.to_owned(), minutes(start)?),
            ["off", name] => Command::Off(name.to_owned()),
            ["list"] => Command::List,
            ["remind"] => Command::Remind,
            [] => return Err("what shall it do? Give a command".into()),
            _ => return Err(format!("{:?} is no command", words.join(" ")).into()),
        };
        Ok(Some(Self { url, minute: Duration::from_secs_f64(minute), command }))
    }
}

fn minutes(text: &str) -> Result<Start, lexopt::Error> {
    let minutes = text.parse().ok().filter(|minutes| (0.0..=FAR).contains(minutes));
    Ok(Start(minutes.ok_or(format!("{text:?} is no number of minutes from 0 to a year"))?))
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(refusal) => {
            eprintln!("rabbitmq_reminders: {refusal}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rabbitmq_reminders: {error}");
            if error.kind() == ErrorKind::Unavailable {
                eprintln!(
                    "no RabbitMQ there? Give --url amqp://USER:PASSWORD@HOST, or get one: \
                     `apt-get install rabbitmq-server` on Debian"
                );
            }
            ExitCode::from(if error.kind() == ErrorKind::Config { 2 } else { 1 })
        }
    }
}
