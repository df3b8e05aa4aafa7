//! The quick starts of the clients' READMEs and of the guide, and the worker in the README of the
//! repository, run as they are written.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use dq_servers::{free_port, maven_lock};

use crate::programs::{replace, run, with_node};
use crate::server::{program, source};

const GREETING: &str = "Hello, Ann!";

/// Stands for `cargo install`, which would take minutes: this workspace's `dq` is already in the
/// `PATH`.
const CARGO: &str = r#"#!/bin/sh
[ "$1 $2 $3 $4" = "install --locked --debug --path" ] && grep -q '"dq-cli"' "$5/Cargo.toml"
"#;

/// `prints TEXT COMMAND` runs a program until it prints the text.
const PRINTS: &str = r#"exec 2>&1
trap 'kill $(jobs -p)' EXIT
prints() {
    while read -r line && echo "$line" && [[ $line != *"$1"* ]]; do :; done < <(exec "${@:2}" 2>&1)
    [[ $line == *"$1"* ]]
    kill $!
    wait $! || true
}
"#;

#[test]
fn python() {
    let mut imports = steps(&source("../../README.md"), &["## From any language"]);
    imports.push("python imports.py".to_owned());
    let imports = (imports, "importing the prices of Acme");
    run_pages("python", "### Python", GREETING, Some(imports));
}

#[test]
fn typescript() {
    run_pages("typescript", "### TypeScript", GREETING, None);
}

#[test]
fn java() {
    run_pages("java", "### Java", "order 1 is closed: it was not paid", None);
}

/// Runs the guide's section, the client's README, and another page, each with what it prints.
fn run_pages(client: &str, heading: &str, readme_prints: &str, other: Option<(Vec<String>, &str)>) {
    // A copy, because the steps build in it and add to it.
    let directory = tempfile::tempdir().unwrap();
    let (clone, programs) = (directory.path().join("dq"), directory.path().join("programs"));
    let sources = clone.join("clients").join(client);
    fs::create_dir_all(&sources).unwrap();
    replace(&source("../../clients").join(client), &sources);
    symlink(source("../../dq-cli"), clone.join("dq-cli")).unwrap();
    fs::create_dir(&programs).unwrap();
    symlink(program(), programs.join("dq")).unwrap();
    let cargo = programs.join("cargo");
    fs::write(&cargo, CARGO).unwrap();
    fs::set_permissions(cargo, PermissionsExt::from_mode(0o755)).unwrap();

    let guide = steps(&source("../../docs/guide/workers.md"), &["## Five minutes", heading]);
    let readme = steps(&sources.join("README.md"), &["## Quick start"]);
    let pages = [(guide, GREETING), (readme, readme_prints)];
    let script = script(pages.into_iter().chain(other));
    let address = format!("127.0.0.1:{}", free_port());
    let url = format!("http://{address}");
    let script = format!("PATH={}:$PATH\n{PRINTS}{script}", programs.display());
    let mut shell = Command::new("timeout");
    shell.args(["-k", "30", "1200", "bash", "-e", "-o", "pipefail", "-c", &script]);
    shell.envs([("DQ_SERVE__ADDRESS", &address), ("DQ_API", &url), ("DQ_URL", &url)]);
    // Python prints at once, and npm uses the packages that it has.
    shell.envs([("PYTHONUNBUFFERED", "1"), ("npm_config_prefer_offline", "true")]);
    shell.current_dir(&clone);
    with_node(&mut shell);
    let _lock = (client == "java").then(maven_lock);
    run(&mut shell);
}

/// A page's steps in the shell: its commands, and programs, which begin with their file names.
fn steps(page: &Path, headings: &[&str]) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let mut steps = Vec::new();
    for heading in headings {
        let section = text.split_once(&format!("\n{heading}\n"));
        let (_, section) = section.unwrap_or_else(|| panic!("{}: no {heading}", page.display()));
        let section = section.split("\n##").next().unwrap();
        for block in section.split("```").skip(1).step_by(2) {
            let (language, block) = block.split_once('\n').unwrap();
            if language == "sh" {
                steps.extend(block.lines().map(str::to_owned));
            } else {
                let name = block.lines().next().unwrap().trim_start_matches(['#', '/', ' ']);
                steps.push(format!("cat >{name} <<'END'\n{block}END"));
            }
        }
    }
    steps
}

/// Prepares the programs of all pages, then runs each until it prints its text. Takes a common
/// step once.
fn script<'a>(pages: impl Iterator<Item = (Vec<String>, &'a str)>) -> String {
    let (mut steps, mut programs) = (Vec::new(), Vec::new());
    for (page, prints) in pages {
        let (program, page) = page.split_last().unwrap();
        steps.extend_from_slice(page);
        programs.push(format!("prints '{prints}' {program}"));
    }
    let mut seen = HashSet::new();
    steps.retain(|step| seen.insert(step.clone()));
    programs.dedup();
    // In Java, the guide's program would keep the README's orders open for 15 minutes.
    steps.extend(programs.into_iter().rev());
    let lines: HashSet<_> = steps.iter().map(|step| step.lines().next()).collect();
    assert_eq!(lines.len(), steps.len(), "the pages' programs of one name differ: {steps:#?}");
    steps.join("\n")
}
