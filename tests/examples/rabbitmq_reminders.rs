//! `rabbitmq_reminders`: several processes plan, move and cancel meetings. The test kills and
//! restarts the one that sends reminders.

use std::time::{Duration, Instant};

use dq_servers::shared_rabbitmq;

use crate::program::{MAX_WAIT, Program, output};

const NAME: &str = "rabbitmq_reminders";

/// A user at a shell, with a separate virtual host. A reminder is due ten minutes before its
/// meeting; here a minute takes a second.
struct User {
    dir: tempfile::TempDir,
    url: String,
}

impl User {
    fn with_vhost(vhost: &str) -> Self {
        // Longer than any call takes on a busy machine.
        let url = format!("{}?response_timeout=60s", shared_rabbitmq().vhost(vhost));
        Self { dir: tempfile::tempdir().unwrap(), url }
    }

    fn run(&self, arguments: &[&str]) -> Vec<String> {
        let arguments = [&["--url", &self.url, "--minute", "1"], arguments].concat();
        let output = output(NAME, self.dir.path(), &arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    fn remind(&self) -> Program {
        let program = Program::start(NAME, self.dir.path(), &["--url", &self.url, "remind"]);
        assert_eq!(program.line().unwrap(), "waiting for meetings; Ctrl-C to stop");
        program
    }

    /// Waits until at most `count` reminders are listed. The list shows a reminder until its
    /// settlement, shortly after it is printed.
    fn wait_until_listed(&self, count: usize) {
        let start = Instant::now();
        while self.run(&["list"]).len() > count {
            assert!(start.elapsed() < MAX_WAIT, "not {count}: {:?}", self.run(&["list"]));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("RabbitMQ complains:\n{}", shared_rabbitmq().complaints());
        }
    }
}

fn reminded(line: &str) -> &str {
    let (name, late) = line.split_once(" is about to start (").expect("a reminder");
    late.strip_suffix(" ms late)").unwrap().parse::<u64>().unwrap();
    name
}

#[test]
fn a_moved_meeting_moves_its_reminder_and_a_cancelled_one_has_none() {
    let user = User::with_vhost("meetings");
    let mut runner = user.remind();
    assert_eq!(user.run(&["plan", "review", "600"]), ["review is planned"]);
    assert_eq!(user.run(&["plan", "standup", "600"]), ["standup is planned"]);
    assert_eq!(user.run(&["plan", "standup", "10"]), ["standup is planned already; move it"]);
    assert_eq!(user.run(&["off", "review"]), ["review is cancelled"]);
    assert_eq!(user.run(&["off", "review"]), ["there is no reminder of review"]);
    assert_eq!(user.run(&["move", "review", "10"]), ["there is no reminder of review"]);
    let listed = user.run(&["list"]);
    assert!(listed.len() == 1 && listed[0].starts_with("standup: scheduled, due 20"), "{listed:?}");

    let start = Instant::now();
    assert_eq!(user.run(&["move", "standup", "18"]), ["standup is moved"]);
    assert_eq!(reminded(&runner.line().unwrap()), "standup");
    assert!(start.elapsed() >= Duration::from_secs(8), "{:?} is early", start.elapsed());
    user.wait_until_listed(0);

    runner.signal("INT");
    assert_eq!(runner.rest(), [""; 0]);
    assert!(runner.wait().success());
}

#[test]
fn after_a_kill_the_next_start_sends_planned_and_moved_reminders() {
    let user = User::with_vhost("killed");
    let mut runner = user.remind();
    for (name, minutes) in [("one", "11"), ("two", "600"), ("three", "600")] {
        assert_eq!(user.run(&["plan", name, minutes]), [format!("{name} is planned")]);
    }
    assert_eq!(reminded(&runner.line().unwrap()), "one");
    user.wait_until_listed(2);
    runner.kill();
    assert_eq!(runner.rest(), [""; 0], "no other reminder was due");

    // No runner is active; the changes apply to the next one.
    assert_eq!(user.run(&["plan", "four", "10"]), ["four is planned"]);
    assert_eq!(user.run(&["off", "two"]), ["two is cancelled"]);
    assert_eq!(user.run(&["move", "three", "10"]), ["three is moved"]);
    let runner = user.remind();
    let mut names = [runner.line().unwrap(), runner.line().unwrap()];
    names.sort();
    assert_eq!(names.each_ref().map(|line| reminded(line)), ["four", "three"]);
    user.wait_until_listed(0);
}

#[test]
fn after_a_kill_while_reminders_are_due_the_next_start_sends_the_rest() {
    let user = User::with_vhost("storm");
    let names: Vec<String> = (0..12).map(|number| format!("meeting-{number:02}")).collect();
    std::thread::scope(|scope| {
        for name in &names {
            scope.spawn(|| assert_eq!(user.run(&["plan", name, "10"]).len(), 1));
        }
    });
    let mut killed = user.remind();
    let first = killed.line().unwrap();
    killed.kill();
    let mut sent: Vec<String> = vec![reminded(&first).to_owned()];
    sent.extend(killed.rest().iter().map(|line| reminded(line).to_owned()));
    // Running reminders are sent again when their leases expire, so some arrive twice.
    let runner = user.remind();
    while names.iter().any(|name| !sent.contains(name)) {
        sent.push(reminded(&runner.line().unwrap()).to_owned());
    }
}
