//! The peers' programs: how each is built and started. `bench/peers/README.md` describes their
//! protocol.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::measure::{CHILD, Result};

const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The peers with their versions and stores. Each store has its own table.
pub(crate) const PEERS: [(&str, &str, &str); 14] = [
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
];

pub(crate) const OWN_PROGRAM: &str = "own-program";

pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) max_due: usize,
    program: Vec<OsString>,
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
        let mut max_due = usize::MAX;
        let program: Vec<OsString> = match name {
            "dq" | "dq-sqlite" | "dq-postgres" => {
                vec![std::env::current_exe()?.into(), CHILD.into(), OWN_PROGRAM.into()]
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
        Ok(Self { name, version, max_due, program })
    }

    pub(crate) fn command(&self, command: &str, address: &str) -> Command {
        let mut program = Command::new(&self.program[0]);
        program.args(&self.program[1..]).arg(command).arg(address);
        program
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

pub(super) fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|error| format!("{name} does not start: {error}"))?;
    if !output.status.success() {
        let (text, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        return Err(format!("{name} failed ({}):\n{text}{errors}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
