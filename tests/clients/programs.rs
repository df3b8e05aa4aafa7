//! Builds the clients, and starts worker programs with them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dq_servers::{PythonPackage, maven_lock};

use crate::runs::Notes;
use crate::server::{TOKEN, program, signal, source};

const REMEDY: &str = "run `cargo xtask servers`";

/// What clients' builds write into their directories; kept from build to build.
const BUILT: [&str; 6] = [".venv", "node_modules", "dist", "build", "target", "__pycache__"];

/// A copy of a client's sources, which others may change meanwhile. One process at a time uses it.
pub(crate) struct Sources {
    pub(crate) directory: PathBuf,
    _lock: File,
}

impl Sources {
    pub(crate) fn of(client: &str) -> Self {
        let clients = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
        let directory = clients.join(client);
        fs::create_dir_all(&directory).unwrap();
        let lock = File::create(clients.join(format!("{client}.lock"))).unwrap();
        lock.lock().unwrap();
        replace(&source("../../clients").join(client), &directory);
        Self { directory, _lock: lock }
    }

    /// Runs a command line in the directory. Panics with its output if it fails.
    pub(crate) fn run(&self, command_line: &[&str]) {
        // A check that hangs must fail, with its output.
        let mut command = Command::new("timeout");
        command.args(["-k", "30", "1200"]).args(command_line).current_dir(&self.directory);
        run(with_node(command.env("DQ_BIN", program())));
    }
}

/// Puts a `node` that is new enough into the command's `PATH`.
pub(crate) fn with_node(command: &mut Command) -> &mut Command {
    if let Some(node) = dq_servers::newer_node() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(node).chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(path).unwrap());
    }
    command
}

/// Copies a directory, and removes what is not in it.
pub(crate) fn replace(from: &Path, to: &Path) {
    let names = |directory: &Path| {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        entries.filter(|name| !BUILT.iter().any(|built| name == built)).collect::<Vec<_>>()
    };
    for name in names(to) {
        let (from, to) = (from.join(&name), to.join(&name));
        match (from.is_dir() == to.is_dir() && from.exists(), to.is_dir()) {
            (true, _) => {}
            (false, true) => fs::remove_dir_all(to).unwrap(),
            (false, false) => fs::remove_file(to).unwrap(),
        }
    }
    for name in names(from) {
        let (from, to) = (from.join(&name), to.join(&name));
        if from.is_dir() {
            fs::create_dir_all(&to).unwrap();
            replace(&from, &to);
        } else if Some(fs::read(&from).unwrap()) != fs::read(&to).ok() {
            // Only a changed file is newer than what is built from it.
            fs::copy(from, to).unwrap();
        }
    }
}

pub(crate) fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}: {REMEDY}"));
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?} has failed ({}):\n{out}\n{err}", output.status);
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Language {
    Python,
    TypeScript,
    Java,
}

/// Makes the command of a built program.
type Build = Arc<dyn Fn() -> Command + Send + Sync>;

/// Starts processes of one language, which note their runs in a file.
#[derive(Clone)]
pub(crate) struct Starter {
    command: Build,
    arguments: Vec<String>,
    errors: PathBuf,
}

impl Starter {
    /// Builds the language's program. Each of its processes has so many workers, with so many slots
    /// each.
    pub(crate) fn build(
        language: Language,
        address: &str,
        notes: &Notes,
        lease: Duration,
        (workers, slots): (u32, u32),
    ) -> Self {
        // Once, since processes of other tests use it.
        static BUILT: [OnceLock<Build>; 3] = [const { OnceLock::new() }; 3];
        let build = || -> Build {
            match language {
                Language::Python => Arc::new(python()),
                Language::TypeScript => Arc::new(typescript()),
                Language::Java => Arc::new(java()),
            }
        };
        let command = Arc::clone(BUILT[language as usize].get_or_init(build));
        let file = notes.file(language);
        let numbers = [lease.as_millis(), workers.into(), slots.into()].map(|it| it.to_string());
        let texts = [format!("http://{address}"), TOKEN.to_owned(), file.display().to_string()];
        let errors = file.with_extension("errors");
        Self { command, arguments: [texts, numbers].concat(), errors }
    }

    pub(crate) fn start(&self) -> Workers {
        let mut command = (self.command)();
        let errors = File::options().create(true).append(true).open(&self.errors).unwrap();
        // The pipe tells the process when this one has ended.
        command.args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(errors);
        Workers(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}: {REMEDY}")))
    }
}

/// A process with workers. Dropping it kills it.
pub(crate) struct Workers(Child);

impl Workers {
    pub(crate) fn signal(&self, name: &str) {
        signal(self.0.id(), name);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn python() -> impl Fn() -> Command {
    // It depends on httpx, as the client does.
    let packages = dq_servers::python_package(PythonPackage::OpenapiClient);
    let sources = Sources::of("python");
    // A copy of its own, because the client's check may replace the other one; so do the next
    // languages.
    let package = sources.directory.with_file_name("python-worker").join("dq_jobs");
    fs::create_dir_all(&package).unwrap();
    replace(&sources.directory.join("src/dq_jobs"), &package);
    let path = std::env::join_paths([&packages, package.parent().unwrap()]).unwrap();
    move || {
        let mut python = Command::new("python3");
        python.arg(source("workers/worker.py")).env("PYTHONPATH", &path);
        python
    }
}

fn typescript() -> impl Fn() -> Command {
    let sources = Sources::of("typescript");
    install(&sources);
    let directory = sources.directory.with_file_name("typescript-worker");
    let package = directory.join("node_modules/dq-jobs");
    fs::create_dir_all(&package).unwrap();
    let dist = package.join("dist").display().to_string();
    sources.run(&["node_modules/.bin/tsc", "-p", "tsconfig.build.json", "--outDir", &dist]);
    fs::copy(sources.directory.join("package.json"), package.join("package.json")).unwrap();
    fs::copy(source("workers/worker.mjs"), directory.join("worker.mjs")).unwrap();
    move || {
        let mut node = Command::new("node");
        with_node(node.arg(directory.join("worker.mjs")));
        node
    }
}

/// Downloads what the TypeScript client needs for its development, unless it is there.
pub(crate) fn install(typescript: &Sources) {
    typescript.run(&["npm", "install", "--prefer-offline", "--no-audit", "--no-fund"]);
}

fn java() -> impl Fn() -> Command {
    let sources = Sources::of("java");
    let directory = sources.directory.with_file_name("java-worker");
    let (classes, libraries) = (directory.join("classes"), directory.join("lib"));
    let output = format!("-DoutputDirectory={}", libraries.display());
    let maven = ["mvn", "-q", "-B", "-f", "core/pom.xml", "-DincludeScope=runtime", &output];
    let lock = maven_lock();
    sources.run(&[&maven[..], &["dependency:copy-dependencies"]].concat());
    drop(lock);
    let class_path = format!("{}:{}/*", classes.display(), libraries.display());
    let client = sources.directory.join("core/src/main/java/io/github/dqjobs");
    let files = fs::read_dir(client).unwrap().map(|entry| entry.unwrap().path());
    let mut javac = Command::new("javac");
    javac.arg("-parameters").arg("-d").arg(&classes).args(["-cp", &class_path]);
    run(javac.args(files).arg(source("workers/Workers.java")));
    move || {
        let mut java = Command::new("java");
        java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m"]);
        java.args(["-cp", &class_path, "Workers"]);
        java
    }
}
