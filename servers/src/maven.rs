//! Java programs of tests, built by Maven.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Command;

use crate::once::{create_once, directory_name};
use crate::program::unpacked_programs;

const JAVA: &str = "java";

/// How often Maven is run, because a download fails now and then.
const ATTEMPTS: u32 = 3;

/// Runs Maven once at a time, until the lock is dropped: two could corrupt their common repository.
///
/// Take it last, after every other lock, so that no two tests or processes wait for each other.
#[must_use]
pub fn maven_lock() -> File {
    try_lock().unwrap_or_else(|error| panic!("the lock of Maven: {error}"))
}

fn try_lock() -> io::Result<File> {
    let directory = unpacked_programs().join(JAVA);
    fs::create_dir_all(&directory)?;
    let lock = File::create(directory.join("lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// Returns a command that lacks only the name of a class in `sources`, and its arguments. Builds
/// them with this property, such as `-Dredisson.version=4.7.0`, unless they are built. Maven may
/// download libraries.
///
/// The build directory in their `pom.xml` must be `${output.directory}`, and that of the libraries
/// `lib` in it.
#[must_use]
pub fn java_program(sources: &Path, name: &str, property: Option<&str>) -> Command {
    let directory = unpacked_programs().join(JAVA);
    let content = text_of(sources).unwrap_or_else(|error| panic!("the sources of {name}: {error}"));
    let content = content + property.unwrap_or_default();
    let target = directory.join(directory_name(name, &content));
    let built = create_once(&target, Path::is_dir, |scratch| {
        let _lock = maven_lock();
        let build = || run_maven(sources, property, &scratch.join("root"));
        (1..ATTEMPTS).fold(build(), |built, _retry| built.or_else(|_| build()))
    });
    built.unwrap_or_else(|error| panic!("{name}: {error}\nrun `cargo xtask servers`"));
    let (classes, libraries) = (target.join("classes"), target.join("lib"));
    let mut java = Command::new("java");
    // Options for a short-lived process: fast start and few threads.
    java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp"]);
    java.arg(format!("{}:{}/*", classes.display(), libraries.display()));
    java
}

fn run_maven(sources: &Path, property: Option<&str>, target: &Path) -> Result<(), String> {
    let mut maven = Command::new("mvn");
    maven.args(["--quiet", "--batch-mode", "--file"]).arg(sources.join("pom.xml"));
    maven.args(property).arg(format!("-Doutput.directory={}", target.display()));
    maven.args(["compiler:compile", "dependency:copy-dependencies"]);
    let output = maven.output().map_err(|error| format!("mvn does not start: {error}"))?;
    if !output.status.success() {
        let log = [output.stdout, output.stderr].concat();
        return Err(format!("mvn fails ({}): {}", output.status, String::from_utf8_lossy(&log)));
    }
    Ok(())
}

/// All sources as one text, in a fixed order.
fn text_of(directory: &Path) -> io::Result<String> {
    let mut entries =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    let mut text = String::new();
    for path in entries {
        if path.is_dir() {
            text += &text_of(&path)?;
        } else {
            let name = path.file_name().unwrap_or_default().display();
            text += &format!("// {name}\n{}", fs::read_to_string(&path)?);
        }
    }
    Ok(text)
}
