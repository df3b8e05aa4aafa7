//! Builds Java programs with Maven, and again when their sources change.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How often Maven is run, because a download fails now and then.
const ATTEMPTS: u32 = 3;

pub(crate) const REMEDY: &str = "run `cargo xtask servers`";

/// Returns the command that starts a class of the program in `sources`. Runs Maven, which may download,
/// unless the same sources were built before with this `name`. Panics with a reason if it fails.
pub(crate) async fn java(
    sources: &'static str,
    name: String,
    property: Option<String>,
) -> tokio::process::Command {
    let build = move || build(sources, &name, property.as_deref());
    let built = tokio::task::spawn_blocking(build).await.unwrap();
    let directory = built.unwrap_or_else(|error| panic!("{error}"));
    let class_path =
        format!("{}:{}/*", directory.join("classes").display(), directory.join("lib").display());
    let mut command = tokio::process::Command::new("java");
    // Options for a short-lived process: fast start and few threads.
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", &class_path]);
    command
}

/// Returns the directory with the program's `classes` and libraries (`lib`).
fn build(sources: &str, name: &str, property: Option<&str>) -> Result<PathBuf, String> {
    let describe = |error: io::Error| format!("{name} cannot be built: {error}");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = tests.join(sources);
    let output = tests.join("../target/interop");
    fs::create_dir_all(&output).map_err(describe)?;
    // One lock for all programs: two concurrent Mavens could corrupt their common repository.
    let lock = File::create(output.join("lock")).map_err(describe)?;
    lock.lock().map_err(describe)?;

    let directory = output.join(name);
    let stamp = directory.join("stamp");
    // Stores the text itself: it is small, and a hash could collide.
    let current = text_of(&sources).map_err(describe)?;
    if fs::read_to_string(&stamp).is_ok_and(|built| built == current) {
        return Ok(directory);
    }
    match fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(describe(error)),
        _ => {}
    }
    let mut built = run_maven(&sources, name, property, &directory);
    for _retry in 1..ATTEMPTS {
        built = built.or_else(|_| run_maven(&sources, name, property, &directory));
    }
    built?;
    fs::write(&stamp, current).map_err(describe)?;
    Ok(directory)
}

fn run_maven(
    sources: &Path,
    name: &str,
    property: Option<&str>,
    directory: &Path,
) -> Result<(), String> {
    let output = Command::new("mvn")
        .args(["--quiet", "--batch-mode", "--file"])
        .arg(sources.join("pom.xml"))
        .args(property)
        .arg(format!("-Doutput.directory={}", directory.display()))
        .args(["compiler:compile", "dependency:copy-dependencies"])
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "Maven cannot build {name} ({}):\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        )),
        Err(error) => Err(format!("mvn does not start ({error}): {REMEDY}")),
    }
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
