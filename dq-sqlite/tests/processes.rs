//! Several processes, and the sudden end of one.
#![cfg(unix)]

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use common::{Bed, claim, queue, real_environment, settle, stats};
use dq_core::{
    Backend, Cancelled, Clock, Due, ErrorKind, Headers, JobId, JobRef, NewJob, OnConflict, Verdict,
};
use dq_sqlite::{SqliteBackend, SqliteConfig};

const PATH: &str = "DQ_SQLITE_TEST_PATH";

/// This test binary again, running one of its ignored tests on the file.
fn again(test: &str, path: &std::path::Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(PATH, path);
    command
}

fn path_from_parent() -> PathBuf {
    std::env::var_os(PATH).expect("is started by another test").into()
}

#[tokio::test]
async fn two_backends_on_one_file_see_and_wake_each_other() {
    let bed = Bed::new();
    let (one, other) = (bed.open().await, bed.open().await);
    let mut wakeups = other.listen(&[queue()]).await.unwrap();
    let new = bed.keyed("k", Due::NOW);
    let _ = one.schedule(vec![new.clone()]).await.unwrap();
    assert_eq!(wakeups.next().await.due, bed.clock.now());

    let leased = claim(&other, 1).await.jobs.remove(0);
    assert_eq!(claim(&one, 1).await.jobs.len(), 0, "one lease at a time");
    let target = JobRef::new(queue(), new.id);
    let cancelled = one.cancel(std::slice::from_ref(&target)).await.unwrap();
    assert_eq!(cancelled, [Cancelled::AlreadyRunning]);
    settle(&one, &leased, Verdict::Release { started: false }).await;
    let next = claim(&one, 1).await.jobs.remove(0);
    assert!(next.token > leased.token, "tokens grow over all processes");
    settle(&other, &next, Verdict::Done).await;
    assert_eq!(stats(&one).await, stats(&other).await);
}

#[tokio::test]
async fn both_may_write_at_full_speed() {
    let bed = Bed::new();
    let backends = [Arc::new(bed.open().await), Arc::new(bed.open().await)];
    let mut writers = Vec::new();
    for backend in &backends {
        for _ in 0..8 {
            let backend = Arc::clone(backend);
            let jobs: Vec<NewJob> = (0..20).map(|_| bed.job(Due::NOW)).collect();
            writers.push(tokio::spawn(async move {
                for job in jobs {
                    assert!(backend.schedule(vec![job]).await.unwrap()[0].is_stored());
                }
            }));
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(stats(&*backends[0]).await.ready, 320);
}

/// The child: says on its output what was acknowledged, until it is killed.
#[tokio::test]
#[ignore = "is started by `what_was_acknowledged_survives_a_kill`"]
async fn child_that_writes() {
    let environment = real_environment();
    let config = SqliteConfig::new(path_from_parent());
    let backend = Arc::new(SqliteBackend::open(&config, &environment).await.unwrap());
    for _ in 0..8 {
        let (backend, environment) = (Arc::clone(&backend), environment.clone());
        tokio::spawn(async move {
            loop {
                let id = environment.entropy.job_id(environment.clock.now());
                let job = NewJob {
                    id,
                    queue: queue(),
                    key: None,
                    on_conflict: OnConflict::Keep,
                    due: Due::NOW,
                    payload: vec![1; 700].into(),
                    headers: Headers::new(),
                    max_attempts: None,
                };
                let _ = backend.schedule(vec![job]).await.unwrap();
                say("scheduled", id);
            }
        });
    }
    loop {
        for leased in claim(&*backend, 5).await.jobs {
            settle(&*backend, &leased, Verdict::Done).await;
            say("done", leased.job.id);
        }
    }
}

fn say(word: &str, id: JobId) {
    // One write for the whole line, and not to the captured output of the test.
    std::io::stdout().write_all(format!("{word} {id}\n").as_bytes()).unwrap();
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill() {
    let bed = Bed::new();
    let mut child = again("child_that_writes", &bed.path()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut scheduled, mut done) = (BTreeSet::new(), BTreeSet::new());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut killed = false;
    while let Some(Ok(line)) = lines.next() {
        match line.split_once(' ') {
            Some(("scheduled", id)) => scheduled.extend(id.parse::<JobId>()),
            Some(("done", id)) => done.extend(id.parse::<JobId>()),
            _ => continue,
        };
        if scheduled.len() >= 500 && done.len() >= 20 && !killed {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    assert!(killed, "the child ended by itself after {} jobs", scheduled.len());

    let config = bed.config();
    let backend = SqliteBackend::open(&config, &real_environment()).await.unwrap();
    for id in &scheduled {
        let found = backend.get(&JobRef::new(queue(), *id)).await.unwrap();
        // One job may have been settled without its word having reached us.
        if found.is_none() && !done.contains(id) {
            let totals = stats(&backend).await.totals.unwrap();
            assert_eq!(totals.done as usize, done.len() + 1, "{id} is lost");
        }
    }
    for id in &done {
        assert!(backend.get(&JobRef::new(queue(), *id)).await.unwrap().is_none(), "{id} is back");
    }
    let conn = dq_sqlite::rusqlite::Connection::open(bed.path()).unwrap();
    let verdict: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
    // Leases of the killed process run on; everything else is there to be claimed.
    let counts = stats(&backend).await;
    assert_eq!(claim(&backend, 10_000).await.jobs.len() as u64, counts.ready);
}

#[tokio::test]
#[ignore = "is started by `a_file_that_cannot_be_written_is_read_only`"]
async fn child_that_may_not_write() {
    let config = SqliteConfig::new(path_from_parent());
    let error = SqliteBackend::open(&config, &real_environment()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_read_only() {
    for (file, directory) in [(0o444, 0o555), (0o444, 0o777), (0o666, 0o555)] {
        refuses_to_write(file, directory).await;
    }
}

async fn refuses_to_write(file: u32, directory: u32) {
    const NOBODY: u32 = 65_534;
    let bed = Bed::new();
    bed.open().await.close().await.unwrap();
    let permit = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    permit(&bed.path(), file);
    permit(bed.dir.path(), directory);
    let mut child = again("child_that_may_not_write", &bed.path());
    // For root every file is writable.
    if std::fs::metadata(bed.path()).unwrap().uid() == 0 {
        child.uid(NOBODY);
    }
    let output = child.output().unwrap();
    permit(bed.dir.path(), 0o755);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{file:o} in {directory:o}: {said}");
}
