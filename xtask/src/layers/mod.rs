//! `cargo xtask layers`: imports between a crate's files must not form cycles, and dq-core's
//! top-level modules must import only modules below them.
//!
//! Reads each workspace crate's sources ([`source`]), without test-only code. A file depends on
//! another if a `use` or inline path in it ([`paths`]) leads to an item defined there; re-exports
//! are followed ([`resolve`]). A module that only declares and re-exports its children does not
//! depend on them. The dependencies form a file graph ([`graph`]).

mod graph;
mod paths;
mod resolve;
mod source;

use std::fs;
use std::path::PathBuf;

use self::source::CrateSource;
use crate::run::{Result, read, root};

/// dq-core's top-level modules, lowest first. A module may import only from rows above its own
/// here; `lib.rs` may import all.
const CORE_ORDER: [&[&str]; 13] = [
    &["error", "setters"],
    &["model"],
    &["sync"],
    &["clock", "entropy"],
    &["trace"],
    &["backend"],
    &["machine"],
    &["config"],
    &["memory"],
    &["handler"],
    &["client"],
    &["schedules", "ingress"],
    &["runner", "simulate"],
];

/// Checks all crates of the workspace.
pub(crate) fn layers() -> Result {
    let mut problems = Vec::new();
    let mut files = 0;
    for dir in crate_dirs()? {
        let Some(source) = CrateSource::load(&dir, &|path| fs::read_to_string(path).ok())? else {
            continue;
        };
        files += source.files.len();
        let imports = source.imports();
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        problems.extend(imports.cycles().iter().map(|cycle| format!("{name}: {cycle}")));
        if name == "dq-core" {
            problems.extend(imports.order_violations(&CORE_ORDER));
        }
    }
    if problems.is_empty() {
        println!("layers: {files} files, no cycles");
        return Ok(());
    }
    Err(format!("{} problems with imports:\n\n{}", problems.len(), problems.join("\n")))
}

/// The directories of the workspace's crates.
fn crate_dirs() -> Result<Vec<PathBuf>> {
    let root = root();
    let manifest = read(&root.join("Cargo.toml"))?;
    let members = manifest
        .split_once("members = [")
        .and_then(|(_, rest)| rest.split_once(']'))
        .ok_or("Cargo.toml has no `members = […]`")?
        .0;
    let members = members.split('"').skip(1).step_by(2).map(|member| root.join(member));
    Ok(std::iter::once(root.clone()).chain(members).collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::graph::Imports;
    use super::*;

    fn imports(files: &[(&str, &str)]) -> Imports {
        let read = |path: &Path| {
            let name = path.strip_prefix("src").ok()?.to_str()?;
            files.iter().find(|(file, _)| *file == name).map(|(_, text)| (*text).to_owned())
        };
        let source = CrateSource::load(Path::new(""), &read);
        source.expect("the files are valid").expect("there is a lib.rs").imports()
    }

    /// The number of cycles, and all messages as one text.
    fn cycles(files: &[(&str, &str)]) -> (usize, String) {
        let cycles = imports(files).cycles();
        (cycles.len(), cycles.concat())
    }

    #[test]
    fn a_cycle_is_reported_with_the_imported_names() {
        let (count, text) = cycles(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; fn f() { crate::c::work(1); }"),
            ("c.rs", "use super::a; pub fn work(_: u8) -> a::A { todo!() }"),
        ]);
        let message = "a cycle of 3 files\n    a.rs imports b.rs (B)\n    \
                       b.rs imports c.rs (work)\n    c.rs imports a.rs (A)\n";
        assert_eq!((count, text.as_str()), (1, message));
    }

    #[test]
    fn imports_in_one_direction_and_code_for_tests_are_no_cycle() {
        let (count, text) = cycles(&[
            ("lib.rs", "mod a; mod b; pub use a::A; #[cfg(test)] mod has_no_file;"),
            ("a.rs", "use crate::b::{self, B}; pub struct A(B, b::C);"),
            (
                "b.rs",
                "pub struct B; pub struct C; pub(in crate::a) struct D;
                 #[cfg(test)] mod tests { use crate::a::A; }
                 impl B { #[cfg(test)] fn f() { crate::a::g() } }",
            ),
        ]);
        assert_eq!(count, 0, "{text}");
    }

    #[test]
    fn re_exports_are_followed_and_their_module_does_not_depend_on_its_children() {
        let (count, text) = cycles(&[
            ("lib.rs", "mod dir; mod user;"),
            ("dir/mod.rs", "mod item; mod other; pub use self::item::Item; pub use other::*;"),
            ("dir/item.rs", "use super::Other; use crate::user::A; pub struct Item(Other);"),
            ("dir/other.rs", "use crate::user::B; pub struct Other;"),
            ("user.rs", "use crate::dir::{Item, Other}; pub struct A; pub struct B;"),
        ]);
        assert_eq!(count, 2, "{text}");
        assert!(text.contains("dir/item.rs imports user.rs (A)"), "{text}");
        assert!(text.contains("dir/other.rs imports user.rs (B)"), "{text}");
    }

    #[test]
    fn code_in_the_file_of_a_module_depends_on_its_children() {
        let (count, text) = cycles(&[
            ("lib.rs", "mod dir;"),
            ("dir/mod.rs", "mod item; use item::Item; pub struct Parent(Item);"),
            ("dir/item.rs", "use super::Parent; pub struct Item(Parent);"),
        ]);
        assert_eq!(count, 1, "{text}");
    }

    #[test]
    fn imports_of_higher_modules_and_modules_without_a_row_are_reported() {
        let imports = imports(&[
            ("lib.rs", "mod low; mod high; mod new;"),
            ("low/mod.rs", "mod inner;"),
            ("low/inner.rs", "use crate::high::High;"),
            ("high.rs", "pub struct High;"),
            ("new.rs", "pub struct New;"),
        ]);
        let problems = imports.order_violations(&[&["low"], &["high"]]);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].ends_with("low may not import high\n"), "{problems:?}");
        assert_eq!(problems[1], "new is not in the declared order\n");
    }
}
