//! `cargo xtask oldest-rusqlite`: checks that dq-sqlite builds with the oldest rusqlite it allows.
//!
//! A program can link only one SQLite, so dq-sqlite must accept the rusqlite version that the rest
//! of the program needs. `Cargo.lock` pins the newest one, used by all other tests.

use crate::run::{Result, cargo_in, read, root, step, target_dir, write};

pub(crate) fn oldest_rusqlite() -> Result {
    let root = root();
    let workspace = read(&root.join("Cargo.toml"))?;
    let oldest = oldest(&workspace)?;
    let dir = target_dir().join("xtask/oldest-rusqlite");
    let manifest = format!(
        "[package]\nname = \"oldest-rusqlite\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\nrusqlite = \"={oldest}\"\n\
         dq-sqlite = {{ path = {:?}, features = [\"bundled\"] }}\n",
        root.join("dq-sqlite")
    );
    write(&dir.join("Cargo.toml"), &manifest)?;
    write(&dir.join("src/lib.rs"), "")?;
    write(&dir.join("Cargo.lock"), &read(&root.join("Cargo.lock"))?)?;
    step(&format!("dq-sqlite with rusqlite {oldest}"), &mut cargo_in(&dir, ["check"]))
}

/// The lower bound in `rusqlite = ">=0.32.1, <0.42"`.
fn oldest(manifest: &str) -> Result<&str> {
    let requirement = manifest.lines().find_map(|line| line.strip_prefix("rusqlite = "));
    requirement
        .and_then(|text| text.split_once(">="))
        .and_then(|(_, range)| range.split_once(','))
        .map(|(oldest, _)| oldest)
        .ok_or_else(|| "Cargo.toml has no line `rusqlite = \">=…, <…\"`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::oldest;

    #[test]
    fn the_lower_bound_is_parsed() {
        let manifest = "[workspace.dependencies]\nrusqlite = \">=0.32.1, <0.42\"\n";
        assert_eq!(oldest(manifest), Ok("0.32.1"));
        assert!(oldest("rusqlite = \"0.41\"").is_err());
    }
}
