//! The quick starts of the clients' READMEs and of the guide run as they are written.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use dq_servers::{free_port, maven_lock};

use crate::checks::turn;
use crate::programs::{Sources, with_node};
use crate::server::{program, signal, source};

const GREETING: &str = "Hello, Ann!";

/// Stands for `cargo install`, which would take minutes: this workspace's `dq` is already in the `PATH`.
const CARGO: &str = r#"#!/bin/sh
[ "$1 $2 $3" = "install --locked --path" ] && grep -q '"dq-cli"' "$4/Cargo.toml"
"#;

#[test]
fn python() {
    readme_and_guide("python", GREETING, "### Python");
}

#[test]
fn typescript() {
    readme_and_guide("typescript", GREETING, "### TypeScript");
}

#[test]
fn java() {
    let _lock = maven_lock();
    readme_and_guide("java", "order 1 is closed: it was not paid", "### Java");
}

fn readme_and_guide(client: &str, prints: &str, heading: &str) {
    let _turn = turn();
    let sources = Sources::of(client);
    let readme = sources.directory.join("README.md");
    run(client, &sources, &script(&readme, &["## Quick start"]), prints);
    let guide = source("../../docs/guide/workers.md");
    run(client, &sources, &script(&guide, &["## Five minutes", heading]), GREETING);
}

/// A page's sections as a shell script: its commands, and programs, which begin with their file names.
fn script(page: &Path, headings: &[&str]) -> String {
    let text = fs::read_to_string(page).unwrap();
    let mut script = String::new();
    for heading in headings {
        let section = text.split_once(&format!("\n{heading}\n"));
        let (_, section) = section.unwrap_or_else(|| panic!("{}: no {heading}", page.display()));
        let section = section.split("\n##").next().unwrap();
        for block in section.split("```").skip(1).step_by(2) {
            let (language, block) = block.split_once('\n').unwrap();
            if language == "sh" {
                script += block;
            } else {
                let name = block.lines().next().unwrap().trim_start_matches(['#', '/', ' ']);
                script += &format!("cat >{name} <<'END'\n{block}END\n");
            }
        }
    }
    script
}

/// Runs a script in a clone of the repository until it prints this text.
fn run(client: &str, sources: &Sources, script: &str, prints: &str) {
    let directory = tempfile::tempdir().unwrap();
    let (clone, programs) = (directory.path().join("dq"), directory.path().join("programs"));
    fs::create_dir_all(clone.join("clients")).unwrap();
    symlink(&sources.directory, clone.join("clients").join(client)).unwrap();
    symlink(source("../../dq-cli"), clone.join("dq-cli")).unwrap();
    fs::create_dir(&programs).unwrap();
    symlink(program(), programs.join("dq")).unwrap();
    let cargo = programs.join("cargo");
    fs::write(&cargo, CARGO).unwrap();
    fs::set_permissions(cargo, PermissionsExt::from_mode(0o755)).unwrap();

    let address = format!("127.0.0.1:{}", free_port());
    let url = format!("http://{address}");
    // The end of the script is the end of all its processes.
    let script =
        format!("exec 2>&1; trap 'kill 0' EXIT; PATH={}:$PATH\n{script}", programs.display());
    let mut shell = Command::new("timeout");
    shell.args(["-k", "30", "1200", "bash", "-e", "-o", "pipefail", "-c", &script]);
    shell.current_dir(&clone).stdin(Stdio::null()).stdout(Stdio::piped());
    // The default store at an address that is free.
    shell.envs([("DQ_BACKEND__TYPE", "sqlite"), ("DQ_BACKEND__PATH", "dq.db")]);
    shell.envs([("DQ_SERVE__ADDRESS", &address), ("DQ_API", &url), ("DQ_URL", &url)]);
    // Python would keep what it prints.
    let mut shell = with_node(shell.env("PYTHONUNBUFFERED", "1")).spawn().unwrap();
    let mut output = String::new();
    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines().map(Result::unwrap);
    let has_run = lines.any(|line| {
        output += &format!("{line}\n");
        line.contains(prints)
    });
    signal(shell.id(), "TERM");
    // The pipe is open until the last process has ended.
    lines.for_each(drop);
    shell.wait().unwrap();
    assert!(has_run, "`{prints}` is not in the output of\n{script}\n{output}");
}
