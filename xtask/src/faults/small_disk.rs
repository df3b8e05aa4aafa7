//! A file system small enough to fill.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::run::Result;

/// The store alone must not fill it. Redis's file, which is not rewritten there, grows by some MiB
/// a minute.
const SIZE: &str = "size=256m";

/// An in-memory file system. Dropping it unmounts it.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    dir: PathBuf,
}

impl SmallDisk {
    /// Mounts at this new directory. `None` if this process may not mount.
    pub(super) fn mount(dir: &Path) -> Option<Self> {
        fs::create_dir_all(dir).ok()?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", SIZE, "dq-faults"]).arg(dir).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then(|| Self { dir: dir.to_owned() })
    }

    /// Fills the disk for a while.
    pub(super) fn fill_for(&self, lasts: Duration) -> Result {
        self.fill()?;
        thread::sleep(lasts);
        self.make_room()
    }

    fn fill(&self) -> Result {
        let path = self.ballast();
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let mut file = File::create(&path).map_err(failed)?;
        // Small pieces leave not even one page.
        while file.write_all(&[0; 4_096]).is_ok() {}
        Ok(())
    }

    fn make_room(&self) -> Result {
        let path = self.ballast();
        fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn ballast(&self) -> PathBuf {
        self.dir.join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that could not be stopped may still have a file open there.
        let _ = Command::new("umount").arg("-l").arg(&self.dir).status();
    }
}
