//! Programs from Debian's packages (or Ubuntu's): unpacked into a directory of ours, so that
//! nothing changes on the machine and no service starts; or installed, where that starts nothing.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::program::on_path;

/// The error is for people.
pub(crate) type Done<T = ()> = Result<T, String>;

/// Can packages be had here at all?
pub(crate) fn is_here() -> bool {
    on_path("apt-get").is_some() && on_path("dpkg").is_some()
}

/// Unpacks `packages`, and what they need that the machine lacks, into `target`. Needs no rights
/// unless the lists of packages are missing or old.
///
/// `target` appears complete or not at all. If two processes do this at once, one of them wins and
/// both are served. What stood there before and does not satisfy `works` is replaced.
pub(crate) fn unpack(packages: &[&str], target: &Path, works: impl Fn(&Path) -> bool) -> Done {
    let parent = target.parent().unwrap_or(target);
    fs::create_dir_all(parent).map_err(|error| told("cannot be created", parent, &error))?;
    let scratch = tempfile::Builder::new()
        .prefix(".unpacking-")
        .tempdir_in(parent)
        .map_err(|error| told("cannot be written to", parent, &error))?;
    let (archives, root) = (scratch.path().join("archives"), scratch.path().join("root"));
    for dir in [&archives, &root] {
        fs::create_dir(dir).map_err(|error| told("cannot be created", dir, &error))?;
    }

    if download(packages, &archives).is_err() {
        run(as_root(&["apt-get", "update", "-qq"])?)?;
        download(packages, &archives)?;
    }
    let downloaded = fs::read_dir(&archives)
        .map_err(|error| told("cannot be read", &archives, &error))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|kind| kind == "deb"));
    for archive in downloaded {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg("-x").args([&archive, &root]);
        run(dpkg)?;
    }
    if !works(&root) {
        return Err(format!("{} were unpacked, but do not run", packages.join(", ")));
    }

    if target.exists() && !works(target) {
        let broken = scratch.path().join("broken");
        fs::rename(target, &broken).map_err(|error| told("cannot be moved", target, &error))?;
    }
    match fs::rename(&root, target) {
        Err(_) if works(target) => Ok(()), // Another process was faster.
        moved => moved.map_err(|error| told("cannot be created", target, &error)),
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

/// Downloads `packages` and what they need that the machine lacks.
fn download(packages: &[&str], into: &Path) -> Done {
    let mut plan = Command::new("apt-get");
    plan.args(["install", "--simulate", "--no-install-recommends"]).args(packages);
    let plan = run(plan)?;
    let mut lacking = lacking(&plan);
    // Those that are installed already are wanted nonetheless where their programs do not run.
    lacking.extend(packages);
    lacking.sort_unstable();
    lacking.dedup();
    let mut download = Command::new("apt-get");
    download.args(["download", "-qq"]).args(lacking).current_dir(into);
    run(download).map(drop)
}

/// What `apt-get install --simulate` would install newly. What it would merely upgrade, such as
/// the C library, stays that of the machine.
fn lacking(plan: &str) -> Vec<&str> {
    let lines = plan.lines().filter_map(|line| line.strip_prefix("Inst "));
    let parts = lines.filter_map(|line| line.split_once(' '));
    parts.filter(|(_, version)| version.starts_with('(')).map(|(name, _)| name).collect()
}

/// The command as root, by `sudo` if we are not.
fn as_root(words: &[&str]) -> Done<Command> {
    let me = run({
        let mut id = Command::new("id");
        id.arg("-u");
        id
    })?;
    let mut command = match (me.trim(), on_path("sudo")) {
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

/// Runs a command for what it prints.
fn run(mut command: Command) -> Done<String> {
    let output = command.env("LC_ALL", "C").output();
    let output = output.map_err(|error| format!("{command:?} cannot be started: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} failed ({}):\n{said}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn told(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("{} {what}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::lacking;

    #[test]
    fn new_packages_are_told_from_upgrades() {
        let plan = "Reading package lists...\n\
                    Inst liblzf1 (3.6-3 Debian:12.15/oldstable [amd64])\n\
                    Inst libc6 [2.36-9] (2.36-10 Debian:12.15/oldstable [amd64])\n\
                    Inst redis-server (5:7.0.15-1 Debian:12/oldstable [amd64])\n\
                    Conf liblzf1 (3.6-3 Debian:12.15/oldstable [amd64])\n";
        assert_eq!(lacking(plan), ["liblzf1", "redis-server"]);
    }
}
