//! Programs from the packages of Debian or Ubuntu: unpacked into a private directory, so that the machine
//! is not changed and no service starts; or installed, if that starts no service.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::program::on_path;

/// Result of a step; the error is a message for the user.
pub(crate) type Done<T = ()> = Result<T, String>;

/// Whether this machine has Debian's package tools.
pub(crate) fn is_available() -> bool {
    on_path("apt-get").is_some() && on_path("dpkg").is_some()
}

/// Unpacks `packages`, with dependencies that the machine lacks, into `target`. Needs no root unless the
/// package lists are missing or old.
///
/// `target` is created atomically. If two processes do this at once, both succeed. An existing directory
/// that does not satisfy `works` is replaced.
pub(crate) fn unpack(packages: &[&str], target: &Path, works: impl Fn(&Path) -> bool) -> Done {
    let parent = target.parent().unwrap_or(target);
    fs::create_dir_all(parent).map_err(|error| io_error("cannot be created", parent, &error))?;
    let scratch = tempfile::Builder::new()
        .prefix(".unpacking-")
        .tempdir_in(parent)
        .map_err(|error| io_error("cannot be written to", parent, &error))?;
    let (archives, root) = (scratch.path().join("archives"), scratch.path().join("root"));
    for dir in [&archives, &root] {
        fs::create_dir(dir).map_err(|error| io_error("cannot be created", dir, &error))?;
    }

    if download(packages, &archives).is_err() {
        run(as_root(&["apt-get", "update", "-qq"])?)?;
        download(packages, &archives)?;
    }
    let downloaded = fs::read_dir(&archives)
        .map_err(|error| io_error("cannot be read", &archives, &error))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|kind| kind == "deb"));
    for archive in downloaded {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg("-x").args([&archive, &root]);
        run(dpkg)?;
    }
    if !works(&root) {
        return Err(format!("{} were unpacked, but do not start", packages.join(", ")));
    }

    if target.exists() && !works(target) {
        let broken = scratch.path().join("broken");
        fs::rename(target, &broken).map_err(|error| io_error("cannot be moved", target, &error))?;
    }
    match fs::rename(&root, target) {
        Err(_) if works(target) => Ok(()), // Another process has created it.
        moved => moved.map_err(|error| io_error("cannot be created", target, &error)),
    }
}

/// Installs `packages` on the machine. Only for those that start no service.
pub(crate) fn install(packages: &[&str]) -> Done {
    let words = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-qq", "--yes"];
    let words = [&words[..], &["--no-install-recommends"], packages].concat();
    if run(as_root(&words)?).is_err() {
        run(as_root(&["apt-get", "update", "-qq"])?)?;
        run(as_root(&words)?)?;
    }
    Ok(())
}

/// Downloads `packages` and the dependencies that the machine lacks.
fn download(packages: &[&str], into: &Path) -> Done {
    let mut plan = Command::new("apt-get");
    plan.args(["install", "--simulate", "--no-install-recommends"]).args(packages);
    let plan = run(plan)?;
    let mut wanted = new_packages(&plan);
    // Installed packages are included, since their programs may not start.
    wanted.extend(packages);
    wanted.sort_unstable();
    wanted.dedup();
    let mut download = Command::new("apt-get");
    download.args(["download", "-qq"]).args(wanted).current_dir(into);
    run(download).map(drop)
}

/// The packages that `apt-get install --simulate` would install, without those that it would only
/// upgrade, such as the C library.
fn new_packages(plan: &str) -> Vec<&str> {
    let lines = plan.lines().filter_map(|line| line.strip_prefix("Inst "));
    let parts = lines.filter_map(|line| line.split_once(' '));
    parts.filter(|(_, version)| version.starts_with('(')).map(|(name, _)| name).collect()
}

/// A command that runs as root, with `sudo` if necessary.
fn as_root(words: &[&str]) -> Done<Command> {
    let user = run({
        let mut id = Command::new("id");
        id.arg("-u");
        id
    })?;
    let mut command = match (user.trim(), on_path("sudo")) {
        ("0", _) => Command::new(words[0]),
        (_, Some(sudo)) => {
            let mut command = Command::new(sudo);
            command.arg(words[0]);
            command
        }
        (_, None) => return Err(format!("as root, run: {}", words.join(" "))),
    };
    command.args(&words[1..]);
    Ok(command)
}

/// Runs a command and returns its output.
fn run(mut command: Command) -> Done<String> {
    let output = command.env("LC_ALL", "C").output();
    let output = output.map_err(|error| format!("{command:?} cannot be started: {error}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} failed ({}):\n{stderr}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn io_error(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("{} {what}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::new_packages;

    #[test]
    fn new_packages_are_distinguished_from_upgrades() {
        let plan = "Reading package lists...\n\
                    Inst liblzf1 (3.6-3 Debian:12.15/oldstable [amd64])\n\
                    Inst libc6 [2.36-9] (2.36-10 Debian:12.15/oldstable [amd64])\n\
                    Inst redis-server (5:7.0.15-1 Debian:12/oldstable [amd64])\n\
                    Conf liblzf1 (3.6-3 Debian:12.15/oldstable [amd64])\n";
        assert_eq!(new_packages(plan), ["liblzf1", "redis-server"]);
    }
}
