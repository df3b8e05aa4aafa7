//! `cargo xtask upgrade REVISION`: processes from an older revision and this one share each store
//! under load, through an upgrade and a rollback. Then their traces are judged. With `--raised`,
//! the upgrade raises the store's format.

mod build;
mod trace;

use std::path::Path;
use std::process::{Command, Stdio};
use std::{fs, thread, time};

use trace::Trace;

use crate::crew::{Crew, DRAIN, PRODUCE, Program};
use crate::faults::Server;
use crate::run::{Result, new_run_dir, root};

/// Duration of each phase: longer than the client's lease (3 s), so a killed process's jobs run
/// again within the phase.
const PHASE: time::Duration = time::Duration::from_secs(4);

pub(crate) fn upgrade(revision: &str, only: Option<&str>, is_raised: bool) -> Result {
    let stores: Vec<&str> =
        Server::STORES.into_iter().filter(|store| only.is_none_or(|only| only == *store)).collect();
    if stores.is_empty() {
        return Err(format!("upgrade: the stores are {}", Server::STORES.join(", ")));
    }
    stores.iter().try_for_each(|store| Server::install(store))?;
    let dir = root().join("target/upgrade");
    let old = build::old(&dir, revision)?;
    let new = build::new(&dir)?;
    let mut failed = Vec::new();
    for store in stores {
        println!("── {store}");
        let run = new_run_dir("upgrade", store)?;
        let violations = match on_store(store, &run, &old, &new, is_raised) {
            Ok(trace) => {
                println!("   {}", trace.summary());
                trace.violations()
            }
            Err(error) => vec![error],
        };
        for violation in &violations {
            println!("   {violation}");
        }
        if violations.is_empty() {
            println!("── {store}: ok\n");
        } else {
            println!("── {store}: failed; the logs are in {}\n", run.display());
            failed.push(store);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("upgrade: {} failed", failed.join(", "))) }
}

fn on_store(
    store: &str,
    run: &Path,
    old: &Program,
    new: &Program,
    is_raised: bool,
) -> Result<Trace> {
    let server = Server::start(store, run);
    let phases = if is_raised { raise_format } else { side_by_side };
    phases(&server.url(), run, old, new)
}

/// Starts old processes and replaces them one by one; one of them crashes.
fn replace_old(url: &str, dir: &Path, old: &Program, new: &Program) -> Result<Crew> {
    let mut crew = Crew::new(vec![url.to_owned()], dir, "log");
    crew.start(old, PRODUCE)?;
    crew.start(old, PRODUCE)?;
    thread::sleep(PHASE);
    crew.start(new, PRODUCE)?;
    thread::sleep(PHASE);
    crew.kill_oldest(old);
    crew.start(new, PRODUCE)?;
    thread::sleep(PHASE);
    crew.stop_all(old);
    Ok(crew)
}

fn side_by_side(url: &str, dir: &Path, old: &Program, new: &Program) -> Result<Trace> {
    let mut crew = replace_old(url, dir, old, new)?;
    thread::sleep(PHASE);
    crew.start(old, PRODUCE)?;
    thread::sleep(PHASE);
    crew.kill_oldest(new);
    thread::sleep(PHASE);
    crew.stop_all(new);
    thread::sleep(PHASE);
    crew.start(new, PRODUCE)?;
    thread::sleep(PHASE);
    crew.stop_all(old);
    crew.stop_all(new);
    crew.start(new, DRAIN)?;
    Trace::read(dir, crew.finish())
}

/// Runs an upgrade after which the store refuses the older revision. Old processes may still finish
/// the jobs they hold.
fn raise_format(url: &str, dir: &Path, old: &Program, new: &Program) -> Result<Trace> {
    let mut crew = replace_old(url, dir, old, new)?;
    expect_refusal(url, dir, old)?;
    crew.kill_oldest(new);
    thread::sleep(PHASE);
    crew.stop_all(new);
    crew.start(new, DRAIN)?;
    let mut trace = Trace::read(dir, crew.finish())?;
    trace.expect_refusals(old.name);
    Ok(trace)
}

/// Starts a process that must fail to connect. Its log extension keeps it out of the judged logs.
fn expect_refusal(url: &str, dir: &Path, old: &Program) -> Result {
    let log = dir.join("late.txt");
    let mut late = Command::new(&old.path);
    late.arg(url).arg(&log).args(["late", "produce"]).stdin(Stdio::null());
    let status = late.status().map_err(|error| format!("{}: {error}", old.path.display()))?;
    let text = fs::read_to_string(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    if status.success() || !text.starts_with("failed Incompatible ") {
        return Err(format!("a late process of the older revision was not refused: {text:?}"));
    }
    Ok(())
}
