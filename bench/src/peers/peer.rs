//! The peers' programs: how each is built and started. `bench/peers/README.md` describes their
//! protocol.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::run::run;
use super::server::{Server, TOKEN};
use crate::measure::{CHILD, Result};

const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The peers with their versions and tables.
pub(crate) const PEERS: [(&str, &str, &str); 20] = [
    ("dq", OWN_VERSION, "redis"),
    ("asynq", "0.26.0", "redis"),
    ("bullmq", "6.7.0", "redis"),
    ("celery", "5.7.0", "redis"),
    ("redisson", "4.7.0", "redis"),
    ("apalis", "1.0.0", "redis"),
    ("dq-sqlite", OWN_VERSION, "sqlite"),
    ("apalis-sqlite", "1.0.0", "sqlite"),
    ("dq-postgres", OWN_VERSION, "postgres"),
    ("awa", "0.6.9", "postgres"),
    ("graphile_worker", "0.14.1", "postgres"),
    ("river", "0.51.2", "postgres"),
    ("apalis-postgres", "1.0.0", "postgres"),
    ("pg-boss", "12.38.0", "postgres"),
    ("dq-python", OWN_VERSION, "serve"),
    ("dq-typescript", OWN_VERSION, "serve"),
    ("dq-java", OWN_VERSION, "serve"),
    ("celery", "5.7.0", "serve"),
    ("bullmq", "6.7.0", "serve"),
    ("redisson", "4.7.0", "serve"),
];

pub(crate) const OWN_PROGRAM: &str = "own-program";

pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) max_due: usize,
    program: Vec<OsString>,
    /// Of a client for another language: it works for this server, for which `program` stores the
    /// jobs.
    worker: Option<Vec<OsString>>,
}

impl Peer {
    /// Builds the program in its own directory with its language's build tool, which reuses earlier
    /// builds.
    pub(crate) fn build(
        name: &'static str,
        version: &'static str,
        directory: &Path,
    ) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let directory = directory.canonicalize()?;
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name);
        let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients");
        let own = vec![std::env::current_exe()?.into(), CHILD.into(), OWN_PROGRAM.into()];
        let is_own = name.starts_with("dq");
        let mut max_due = usize::MAX;
        let program: Vec<OsString> = match name {
            "dq" | "dq-sqlite" | "dq-postgres" => own.clone(),
            "dq-python" => {
                let python = directory.join("bin/python");
                run(Command::new("python3").args(["-m", "venv"]).arg(&directory))?;
                let install = ["-m", "pip", "install", "--quiet"];
                run(Command::new(&python).args(install).arg(clients.join("python")))?;
                vec![python.into(), sources.join("main.py").into()]
            }
            "dq-typescript" => {
                let client = clients.join("typescript");
                run(Command::new("npm").args(["ci", "--no-fund"]).current_dir(&client))?;
                let pack = ["pack", "--silent", "--pack-destination"];
                let mut pack = {
                    let mut npm = Command::new("npm");
                    npm.args(pack).arg(&directory).current_dir(client);
                    npm
                };
                let package = directory.join(run(&mut pack)?.trim());
                let install = ["install", "--no-fund", "--no-save"];
                run(Command::new("npm").args(install).arg(package).current_dir(&directory))?;
                fs::copy(sources.join("main.mjs"), directory.join("main.mjs"))?;
                vec!["node".into(), directory.join("main.mjs").into()]
            }
            "dq-java" => {
                let mut maven = Command::new("mvn");
                maven.args(["--quiet", "--batch-mode", "--projects", "core"]);
                maven.args(["compile", "dependency:copy-dependencies", "-DincludeScope=runtime"]);
                maven.arg(format!("-DoutputDirectory={}", directory.join("lib").display()));
                run(maven.current_dir(clients.join("java")))?;
                let mut path = clients.join("java/core/target/classes:").into_os_string();
                path.push(directory.join("lib/*"));
                vec!["java".into(), "-cp".into(), path, sources.join("Main.java").into()]
            }
            "asynq" | "river" => {
                let program = directory.join("peer");
                run(Command::new("go").args(["build", "-o"]).arg(&program).current_dir(&sources))?;
                vec![program.into()]
            }
            "bullmq" | "pg-boss" => {
                for file in ["package.json", "main.mjs"] {
                    fs::copy(sources.join(file), directory.join(file))?;
                }
                let install = ["install", "--no-package-lock", "--no-fund", "--ignore-scripts"];
                run(Command::new("npm").args(install).current_dir(&directory))?;
                vec!["node".into(), directory.join("main.mjs").into()]
            }
            "celery" => {
                let python = directory.join("bin/python");
                run(Command::new("python3").args(["-m", "venv"]).arg(&directory))?;
                let install = ["-m", "pip", "install", "--quiet", "-r"];
                run(Command::new(&python).args(install).arg(sources.join("requirements.txt")))?;
                vec![python.into(), sources.join("main.py").into()]
            }
            "redisson" => {
                let mut maven = Command::new("mvn");
                maven.args(["--quiet", "--batch-mode", "--file"]).arg(sources.join("pom.xml"));
                maven.arg(format!("-Dpeer.directory={}", directory.display()));
                run(maven.args(["compiler:compile", "dependency:copy-dependencies"]))?;
                let mut path = directory.join("classes").into_os_string();
                path.push(":");
                path.push(directory.join("lib/*"));
                vec!["java".into(), "-cp".into(), path, "peer.Main".into()]
            }
            "apalis" | "apalis-sqlite" | "apalis-postgres" | "awa" | "graphile_worker" => {
                let mut cargo = Command::new("cargo");
                cargo.args(["build", "--quiet", "--release", "--locked", "--manifest-path"]);
                run(cargo.arg(sources.join("Cargo.toml")).arg("--target-dir").arg(&directory))?;
                if name == "apalis" {
                    // Its script passes all due jobs to one command, which Redis limits to some
                    // 8,000 arguments. Above that, the worker ends.
                    max_due = 5_000;
                }
                vec![directory.join(format!("release/peer-{name}")).into()]
            }
            _ => return Err(format!("there is no peer {name:?}").into()),
        };
        let is_client = is_own && program != own;
        if is_client {
            Server::build()?;
        }
        let worker = is_client.then(|| program.clone());
        Ok(Self { name, version, max_due, program: if is_own { own } else { program }, worker })
    }

    pub(crate) fn command(&self, command: &str, address: &str) -> Command {
        call(&self.program, command, address)
    }

    /// The process that runs the store's jobs, and the server for which it works, if it needs one.
    pub(crate) fn work(&self, address: &str) -> Result<(Command, Option<Server>)> {
        Ok(match &self.worker {
            None => (self.command("work", address), None),
            Some(worker) => {
                let server = Server::start(address)?;
                let mut work = call(worker, "work", &server.url);
                work.env("DQ_TOKEN", TOKEN);
                (work, Some(server))
            }
        })
    }

    /// Stores jobs and returns the seconds measured by the program. The README explains `how`,
    /// `first` and `rate`.
    pub(crate) fn store(
        &self,
        address: &str,
        count: usize,
        how: &str,
        first: i64,
        rate: usize,
    ) -> Result<f64> {
        let mut program = self.command("store", address);
        program.args([count.to_string(), how.to_owned(), first.to_string(), rate.to_string()]);
        let output = run(&mut program)?;
        let seconds = output.trim().parse();
        seconds.map_err(|_| format!("{} printed {output:?}, not a number", self.name).into())
    }
}

fn call(program: &[OsString], command: &str, address: &str) -> Command {
    let mut call = Command::new(&program[0]);
    call.args(&program[1..]).arg(command).arg(address);
    call
}
