//! Directories that are filled once, by one process at a time.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::Path;

/// Returns a directory's name for this content: other content gets another directory.
pub(crate) fn directory_name(name: &str, content: &str) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("{name}-{:08x}", hasher.finish() as u32)
}

/// Creates `target`, unless `is_complete` holds for it. Another process that needs it waits.
///
/// `fill` gets an empty scratch directory and creates `root` in it, which then gets the name. A
/// target that is not complete is replaced. The error is a message for the user.
pub(crate) fn create_once(
    target: &Path,
    is_complete: impl Fn(&Path) -> bool,
    fill: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<(), String> {
    if is_complete(target) {
        return Ok(());
    }
    let text = |error: io::Error| format!("{} cannot be created: {error}", target.display());
    let parent = target.parent().unwrap_or(target);
    fs::create_dir_all(parent).map_err(text)?;
    let mut lock = target.as_os_str().to_owned();
    lock.push(".lock");
    let lock = File::create(lock).and_then(|file| file.lock().map(|()| file)).map_err(text)?;
    if !is_complete(target) {
        let scratch = tempfile::Builder::new().prefix(".installing-").tempdir_in(parent);
        let scratch = scratch.map_err(text)?;
        let root = scratch.path().join("root");
        fill(scratch.path())?;
        if !is_complete(&root) {
            return Err(format!("{} was unpacked, but does not work", target.display()));
        }
        if target.exists() {
            fs::remove_dir_all(target).map_err(text)?;
        }
        fs::rename(root, target).map_err(text)?;
    }
    drop(lock);
    Ok(())
}
