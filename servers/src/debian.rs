//! Programs from Debian or Ubuntu packages. Servers are unpacked into a private directory, so that
//! no service starts. Packages without services are installed.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use crate::once::create_once;
use crate::program::on_path;

/// The error is a message for the user.
pub(crate) type Result<T = ()> = std::result::Result<T, String>;

/// Fails with a remedy if Debian packages cannot be downloaded here.
pub(crate) fn require(programs: &str) -> Result {
    if on_path("apt-get").is_some() && on_path("dpkg").is_some() {
        return Ok(());
    }
    Err(format!(
        "the tests need programs that are missing or do not work, and there is no apt-get to \
         download them: install or repair {programs}"
    ))
}

/// Unpacks `packages`, with missing dependencies, into `target`. Needs root only if the package
/// lists are missing or old. `works` checks that a directory's programs start.
pub(crate) fn unpack(packages: &[&str], target: &Path, works: impl Fn(&Path) -> bool) -> Result {
    create_once(target, works, |scratch| {
        let failed = |error: io::Error| format!("{}: {error}", scratch.display());
        let (archives, root) = (scratch.join("archives"), scratch.join("root"));
        fs::create_dir(&archives).and_then(|()| fs::create_dir(&root)).map_err(failed)?;
        retry_with_new_lists(|| download(packages, &archives))?;
        for archive in fs::read_dir(&archives).map_err(failed)?.flatten() {
            let archive = archive.path();
            if archive.extension().is_some_and(|extension| extension == "deb") {
                run(Command::new("dpkg").arg("-x").args([&archive, &root]))?;
            }
        }
        Ok(())
    })
}

/// Only for packages without a service.
pub(crate) fn install(packages: &[&str]) -> Result {
    // `sudo` does not pass on the environment.
    let command_line =
        ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-qq", "--yes"];
    let command_line = [&command_line[..], &["--no-install-recommends"], packages].concat();
    retry_with_new_lists(|| run(&mut as_root(&command_line)?).map(drop))
}

/// The package with this prefix on which `package` depends, such as `postgresql-15` of
/// `postgresql`.
pub(crate) fn dependency(package: &str, prefix: &str) -> Result<String> {
    retry_with_new_lists(|| {
        let depends = run(Command::new("apt-cache").args(["depends", package]))?;
        let mut names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        let name = names.find(|name| name.starts_with(prefix)).map(str::to_owned);
        name.ok_or_else(|| format!("{package} depends on no package {prefix}…:\n{depends}"))
    })
}

fn retry_with_new_lists<T>(attempt: impl Fn() -> Result<T>) -> Result<T> {
    let first = match attempt() {
        Ok(value) => return Ok(value),
        Err(first) => first,
    };
    let updated = as_root(&["apt-get", "update", "-qq"]).and_then(|mut update| run(&mut update));
    updated.map_err(|error| format!("{first}\n{error}"))?;
    attempt()
}

fn download(packages: &[&str], into: &Path) -> Result {
    let simulate = ["install", "--simulate", "--no-install-recommends"];
    let plan = run(Command::new("apt-get").args(simulate).args(packages))?;
    let mut wanted = new_packages(&plan);
    // Include `packages` that the machine has, because their programs may not start.
    wanted.extend(packages);
    wanted.sort_unstable();
    wanted.dedup();
    let mut download = Command::new("apt-get");
    run(download.args(["download", "-qq"]).args(wanted).current_dir(into)).map(drop)
}

/// The names in a simulated `apt-get install`, without mere upgrades, such as of the C library.
fn new_packages(plan: &str) -> Vec<&str> {
    let lines = plan.lines().filter_map(|line| line.strip_prefix("Inst "));
    let packages = lines.filter_map(|line| line.split_once(' '));
    packages.filter(|(_, version)| version.starts_with('(')).map(|(name, _)| name).collect()
}

/// A command that runs as root, by `sudo` if necessary.
fn as_root(command_line: &[&str]) -> Result<Command> {
    let user = run(Command::new("id").arg("-u"))?;
    let mut words = command_line.iter();
    let mut command = match (user.trim(), on_path("sudo")) {
        ("0", _) => Command::new(words.next().expect("a command line has a program")),
        (_, Some(sudo)) => Command::new(sudo),
        (_, None) => return Err(format!("as root, run: {}", command_line.join(" "))),
    };
    command.args(words);
    Ok(command)
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.env("LC_ALL", "C").output();
    let output = output.map_err(|error| format!("{command:?} cannot be started: {error}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} failed ({}):\n{stderr}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
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
