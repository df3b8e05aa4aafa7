//! `rabbitmq_reminders`: meetings are planned, moved and called off by one process after the other,
//! and reminded of by one that is killed meanwhile.

use std::path::Path;
use std::time::{Duration, Instant};

use dq_servers::{RabbitMq, shared_rabbitmq};

use crate::program::{PATIENCE, Program, output};

const NAME: &str = "rabbitmq_reminders";

/// A user at a shell, with a virtual host of their own.
struct Desk {
    dir: tempfile::TempDir,
    url: String,
    /// In seconds.
    minute: u32,
}

impl Desk {
    fn at(vhost: &str) -> Self {
        Self::on(shared_rabbitmq().vhost(vhost))
    }

    fn on(url: String) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), url, minute: 1 }
    }

    fn minutes(&self, minutes: u32) -> Duration {
        Duration::from_secs((minutes * self.minute).into())
    }

    /// Runs a command to its end, for the lines that it prints.
    fn say(&self, words: &[&str]) -> Vec<String> {
        let minute = self.minute.to_string();
        let words = [&["--url", &self.url, "--minute", &minute], words].concat();
        let output = output(NAME, self.dir.path(), &words);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {told}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    fn remind(&self) -> Program {
        let program = Program::start(NAME, self.dir.path(), &["--url", &self.url, "remind"]);
        assert_eq!(program.line().unwrap(), "waiting for meetings; Ctrl-C to stop");
        program
    }

    /// Waits until no more reminders are left: one is printed a little before it is settled.
    fn wait_until_left(&self, count: usize) {
        let start = Instant::now();
        while self.say(&["list"]).len() > count {
            assert!(start.elapsed() < PATIENCE, "not {count}: {:?}", self.say(&["list"]));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Plays a scene, again with longer minutes while the machine is too slow for it.
fn play(name: &str, scene: fn(&Desk) -> Result<(), TooSlow>) {
    let is_played = |minute| {
        let desk = Desk { minute, ..Desk::at(&format!("{name}-{minute}")) };
        scene(&desk).is_ok()
    };
    assert!([1, 2, 4].into_iter().any(is_played), "too slow for what is tested here");
}

/// A reminder may have been due before the scene came to it.
struct TooSlow;

/// Whose reminder a line is.
fn reminded(line: &str) -> &str {
    let (name, late) = line.split_once(" is about to start (").expect("a reminder");
    late.strip_suffix(" ms late)").unwrap().parse::<u64>().unwrap();
    name
}

#[test]
fn a_meeting_that_moves_takes_its_reminder_along_and_one_that_is_off_has_none() {
    play("meetings", one_that_moves_and_one_that_is_off);
}

fn one_that_moves_and_one_that_is_off(desk: &Desk) -> Result<(), TooSlow> {
    let mut runner = desk.remind();
    let start = Instant::now();
    assert_eq!(desk.say(&["plan", "review", "16"]), ["review is planned"]);
    assert_eq!(desk.say(&["plan", "standup", "600"]), ["standup is planned"]);
    assert_eq!(desk.say(&["plan", "standup", "10"]), ["standup is planned already; move it"]);
    let off = desk.say(&["off", "review"]);
    if start.elapsed() >= desk.minutes(6) {
        return Err(TooSlow);
    }
    assert_eq!(off, ["review is called off"]);
    assert_eq!(desk.say(&["off", "review"]), ["no reminder of review is to be given"]);
    assert_eq!(desk.say(&["move", "review", "20"]), ["no reminder of review is to be given"]);
    let listed = desk.say(&["list"]);
    assert!(listed.len() == 1 && listed[0].starts_with("standup: scheduled, due 20"), "{listed:?}");

    let start = Instant::now();
    assert_eq!(desk.say(&["move", "standup", "18"]), ["standup is moved"]);
    // Had the review's reminder been given, it would have come first.
    assert_eq!(reminded(&runner.line().unwrap()), "standup");
    assert!(start.elapsed() >= desk.minutes(8), "{:?} is early", start.elapsed());
    desk.wait_until_left(0);

    #[cfg(unix)]
    {
        runner.signal("INT");
        assert_eq!(runner.rest(), [""; 0]);
        assert!(runner.wait().success());
    }
    Ok(())
}

#[test]
fn killed_and_started_again_it_reminds_of_what_was_planned_moved_and_not_called_off() {
    play("killed", killed_and_started_again);
}

fn killed_and_started_again(desk: &Desk) -> Result<(), TooSlow> {
    let mut runner = desk.remind();
    let start = Instant::now();
    for (name, minutes) in [("one", "11"), ("two", "600"), ("three", "22"), ("four", "600")] {
        assert_eq!(desk.say(&["plan", name, minutes]), [format!("{name} is planned")]);
    }
    let first = runner.line().unwrap();
    // The next runner must not be given it again.
    desk.wait_until_left(3);
    runner.kill();
    if start.elapsed() >= desk.minutes(12) {
        return Err(TooSlow);
    }
    assert_eq!(reminded(&first), "one");
    assert_eq!(runner.rest(), [""; 0], "nothing else was due");

    // Nobody runs now; what is changed holds for whoever comes.
    assert_eq!(desk.say(&["off", "two"]), ["two is called off"]);
    assert_eq!(desk.say(&["move", "four", "10"]), ["four is moved"]);
    let runner = desk.remind();
    let mut names = [runner.line().unwrap(), runner.line().unwrap()];
    names.sort();
    assert_eq!(names.each_ref().map(|line| reminded(line)), ["four", "three"]);
    desk.wait_until_left(0);
    Ok(())
}

#[test]
fn killed_while_reminders_are_due_it_gives_the_rest() {
    let desk = Desk::at("storm");
    let names: Vec<String> = (0..12).map(|number| format!("meeting-{number:02}")).collect();
    std::thread::scope(|scope| {
        for name in &names {
            scope.spawn(|| assert_eq!(desk.say(&["plan", name, "10"]).len(), 1));
        }
    });
    let mut killed = desk.remind();
    let first = killed.line().unwrap();
    killed.kill();
    let mut given: Vec<String> = vec![reminded(&first).to_owned()];
    given.extend(killed.rest().iter().map(|line| reminded(line).to_owned()));
    // Those that had begun run again when their leases lapse, so that some may be given twice.
    let runner = desk.remind();
    while names.iter().any(|name| !given.contains(name)) {
        given.push(reminded(&runner.line().unwrap()).to_owned());
    }
}

#[test]
fn without_a_broker_it_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let said = refusal(dir.path(), &["--url", "amqp://127.0.0.1:1", "list"], 1);
    assert!(said.contains("127.0.0.1:1"), "{said}");
    // Not the last line: a thread of the client's that is cut off as the program ends may say so.
    let friendly = said.lines().find(|line| line.starts_with("no RabbitMQ there? ")).expect(&said);
    for word in ["--url", "apt-get install rabbitmq-server"] {
        assert!(friendly.contains(word), "{word}: {said}");
    }
}

#[test]
fn one_that_was_restarted_still_has_the_reminders() {
    let broker = RabbitMq::start();
    let desk = Desk::on(broker.url());
    assert_eq!(desk.say(&["plan", "standup", "30"]), ["standup is planned"]);
    broker.kill();
    broker.restart();
    let listed = desk.say(&["list"]);
    assert!(listed.len() == 1 && listed[0].starts_with("standup: "), "{listed:?}");
    assert_eq!(reminded(&desk.remind().line().unwrap()), "standup");
}

#[test]
fn nonsense_is_answered_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    for (words, word) in [
        (&[][..], "what shall it do"),
        (&["plan", "standup"], "\"plan standup\" is no command"),
        (&["plan", "standup", "soon"], "\"soon\""),
        (&["plan", "standup", "-1"], "-1"),
        (&["plan", "standup", "1e9"], "1e9"),
        (&["--minute", "0", "list"], "0.01 to 60"),
        (&["--minute", "x", "list"], "x"),
        (&["--url"], "--url"),
        (&["--url", "localhost", "list"], "scheme"),
        (&["--url", "amqp://localhost?prefex=a", "list"], "prefex"),
        (&["--broker", "x"], "--broker"),
    ] {
        let said = refusal(dir.path(), words, 2);
        assert!(said.contains(word), "{words:?}: {said}");
    }
}

/// What it says when it refuses.
fn refusal(dir: &Path, words: &[&str], code: i32) -> String {
    let output = output(NAME, dir, words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
    assert!(said.starts_with("rabbitmq_reminders: "), "{words:?}: {said}");
    said
}
