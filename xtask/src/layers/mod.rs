//! `cargo xtask layers`: imports between a crate's files must not form cycles, and dq-core's
//! top-level modules must import only modules below them.
//!
//! A file imports another one if a `use` or a path in its code ([`source`]) leads to an item
//! defined there. Re-exports are followed. A re-export of a child is no import of its own: the
//! child may import from its parent.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

use self::source::{Import, Modules, read_modules};
use crate::run::{Result, read, root};

/// dq-core's top-level modules, lowest first. A module may import only from rows above its own
/// here; `lib.rs` may import all.
const CORE_ORDER: [&[&str]; 14] = [
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
    &["pull"],
];

/// The most re-exports that are followed in a row, because they may form a cycle.
const MAX_REEXPORTS: usize = 16;

/// The imported names, by importing and imported file.
type Imports = BTreeMap<(String, String), BTreeSet<String>>;

pub(crate) fn layers() -> Result {
    let mut problems = Vec::new();
    let mut count = 0;
    for dir in crate_dirs()? {
        let files = source_files(&dir.join("src"))
            .map_err(|error| format!("{}: {error}", dir.display()))?;
        count += files.len();
        let modules = read_modules(&files)?;
        let imports = imports(&modules);
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let cycle = cycle(imports.clone());
        problems.extend(describe(&cycle).map(|import| format!("{name}, in a cycle: {import}")));
        if name == "dq-core" {
            problems.extend(upward(&imports, &CORE_ORDER));
        }
    }
    if problems.is_empty() {
        println!("layers: {count} files, no cycles");
        return Ok(());
    }
    Err(format!("imports in a cycle or against the order:\n{}", problems.join("\n")))
}

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

/// The paths relative to `src`, and the texts. A crate with a library is only its library.
fn source_files(src: &Path) -> io::Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    let mut dirs = vec![src.to_owned()];
    while let Some(dir) = dirs.pop().filter(|dir| dir.is_dir()) {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let name = path.strip_prefix(src).unwrap_or(&path).to_string_lossy().replace('\\', "/");
            if path.is_dir() {
                dirs.push(path);
            } else if name.ends_with(".rs") {
                files.push((name, fs::read_to_string(path)?));
            }
        }
    }
    if files.iter().any(|(name, _)| name == "lib.rs") {
        files.retain(|(name, _)| name != "main.rs" && !name.starts_with("bin/"));
    }
    Ok(files)
}

fn imports(modules: &Modules) -> Imports {
    let mut imports = Imports::new();
    for (path, module) in modules {
        // A re-export of a child is no import, unless the module's own code uses the name.
        let leads_to_child = |import: &Import| {
            absolute(modules, path, &import.path, MAX_REEXPORTS)
                .is_some_and(|to| to.len() > path.len() && to.starts_with(path))
        };
        let uses = module.imports.iter().filter(|import| {
            !import.is_reexport || module.names.contains(&import.name) || !leads_to_child(import)
        });
        for used in uses.map(|import| &import.path).chain(&module.paths) {
            if let Some((file, name)) = definition(modules, path, used, MAX_REEXPORTS)
                && file != module.file
            {
                imports.entry((module.file.clone(), file)).or_default().insert(name);
            }
        }
    }
    imports
}

/// The file and name of the item to which a path in a module leads. `None` for a module, an item of
/// another crate, and an exported macro.
fn definition(
    modules: &Modules,
    module: &[String],
    path: &[String],
    reexports: usize,
) -> Option<(String, String)> {
    let path = absolute(modules, module, path, reexports)?;
    let length = (0..=path.len()).take_while(|end| modules.contains_key(&path[..*end])).last()?;
    let (module, rest) = path.split_at(length);
    let name = rest.first()?;
    let here = &modules[module];
    if here.definitions.contains(name) {
        return Some((here.file.clone(), name.clone()));
    }
    let reexports = reexports.checked_sub(1)?;
    let follow = |path: &[String]| definition(modules, module, path, reexports);
    if let Some(import) = here.imports.iter().find(|import| import.name == *name) {
        return follow(&[&import.path, &rest[1..]].concat());
    }
    let globs = here.imports.iter().filter(|import| import.name == "*");
    let mut globs = globs.filter_map(|glob| absolute(modules, module, &glob.path, reexports));
    if let Some(glob) = globs.find(|glob| modules.get(glob).is_some_and(|it| it.has(name))) {
        return definition(modules, &glob, &[&["self".to_owned()], rest].concat(), reexports);
    }
    // Otherwise a macro defines the item here. Exported macros belong to the crate root.
    (!module.is_empty()).then(|| (here.file.clone(), name.clone()))
}

/// Converts a path as written in a module to one from the crate root. `None` if it leads to another
/// crate.
fn absolute(
    modules: &Modules,
    module: &[String],
    path: &[String],
    reexports: usize,
) -> Option<Vec<String>> {
    let (first, rest) = path.split_first()?;
    let base = match first.as_str() {
        "crate" => Vec::new(),
        "self" => module.to_vec(),
        "super" => {
            let (_, parent) = module.split_last()?;
            let is_grandparent = rest.first().is_some_and(|name| name == "super");
            return if is_grandparent {
                absolute(modules, parent, rest, reexports)
            } else {
                Some([parent, rest].concat())
            };
        }
        _ => {
            let child = [module, std::slice::from_ref(first)].concat();
            if modules.contains_key(&child) {
                child
            } else {
                let mut imports = modules[module].imports.iter();
                // In `use time::time;` the first name is a crate, not this import's item.
                let import = imports.find(|import| import.name == *first && import.path != path)?;
                absolute(modules, module, &import.path, reexports.checked_sub(1)?)?
            }
        }
    };
    Some([&base[..], rest].concat())
}

/// Returns the imports of one cycle; none if there is no cycle.
fn cycle(imports: Imports) -> Imports {
    let mut cycle = in_cycles(imports);
    for import in cycle.clone().keys() {
        let mut others = cycle.clone();
        others.remove(import);
        let others = in_cycles(others);
        if !others.is_empty() {
            cycle = others;
        }
    }
    cycle
}

/// Returns the imports in cycles, and those on a way from one cycle to another.
fn in_cycles(mut imports: Imports) -> Imports {
    loop {
        let count = imports.len();
        let (importing, imported): (BTreeSet<_>, BTreeSet<_>) = imports.keys().cloned().unzip();
        imports.retain(|(from, to), _| imported.contains(from) && importing.contains(to));
        if imports.len() == count {
            return imports;
        }
    }
}

/// Messages for imports of top-level modules that are in no lower row.
fn upward(imports: &Imports, order: &[&[&str]]) -> Vec<String> {
    let row = |file: &str| order.iter().position(|row| row.contains(&top_module(file)));
    let mut upward = imports.clone();
    upward.retain(|(from, to), _| {
        let is_lower = row(from).zip(row(to)).is_some_and(|(from, to)| to < from);
        from != "lib.rs" && top_module(from) != top_module(to) && !is_lower
    });
    describe(&upward).map(|import| format!("against the order: {import}")).collect()
}

fn top_module(file: &str) -> &str {
    let first = file.split('/').next().unwrap_or(file);
    first.strip_suffix(".rs").unwrap_or(first)
}

fn describe(imports: &Imports) -> impl Iterator<Item = String> {
    imports.iter().map(|((from, to), names)| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        format!("{from} imports {to} ({})", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and texts.
    type Files = [(&'static str, &'static str)];

    fn imports_of(files: &Files) -> Imports {
        let owned = |(file, text): &(&str, &str)| ((*file).to_owned(), (*text).to_owned());
        imports(&read_modules(&files.iter().map(owned).collect::<Vec<_>>()).unwrap())
    }

    #[test]
    fn the_imports_of_a_cycle_are_found() {
        let cases: [(&str, &Files, &[&str]); 6] = [
            (
                "a cycle of three files",
                &[
                    ("lib.rs", "mod a; mod b; mod c;"),
                    ("a.rs", "use crate::b::B; pub struct A(B);"),
                    ("b.rs", "pub struct B; fn f() { crate::c::work(1); }"),
                    ("c.rs", "use super::a; pub fn work(_: u8) -> a::A { todo!() }"),
                ],
                &["a.rs imports b.rs (B)", "b.rs imports c.rs (work)", "c.rs imports a.rs (A)"],
            ),
            (
                "one direction, and code for tests",
                &[
                    ("lib.rs", "mod a; mod b; pub use a::A; #[cfg(test)] mod fixture;"),
                    ("a.rs", "use crate::b::{self, B}; pub struct A(B, b::C);"),
                    (
                        "b.rs",
                        "pub struct B; pub struct C; pub(in crate::a) struct D;
                         #[cfg(test)] mod tests { use crate::a::A; }
                         impl B { #[cfg(test)] fn f() { crate::a::g() } }
                         use crate::fixture::F;",
                    ),
                    ("fixture.rs", "use crate::b::B; pub struct F;"),
                ],
                &[],
            ),
            (
                "re-exports lead to children, and a module does not import them",
                &[
                    ("lib.rs", "mod dir; mod user;"),
                    (
                        "dir/mod.rs",
                        "mod item; mod other; pub use self::item::Item; pub use other::*;",
                    ),
                    (
                        "dir/item.rs",
                        "use super::Other; use crate::user::A; pub struct Item(Other);",
                    ),
                    ("dir/other.rs", "pub struct Other;"),
                    ("user.rs", "use crate::dir::{Item as I, Other}; pub struct A;"),
                ],
                &["dir/item.rs imports user.rs (A)", "user.rs imports dir/item.rs (Item)"],
            ),
            (
                "a re-export of a sibling",
                &[
                    ("lib.rs", "mod a; mod b;"),
                    ("a.rs", "pub use crate::b::B; pub struct A;"),
                    ("b.rs", "use crate::a::A; pub struct B(A);"),
                ],
                &["a.rs imports b.rs (B)", "b.rs imports a.rs (A)"],
            ),
            (
                "code in a module's file imports its children",
                &[
                    ("lib.rs", "mod dir;"),
                    ("dir/mod.rs", "mod item; pub use item::Item; pub struct Parent(Item);"),
                    ("dir/item.rs", "use super::Parent; pub struct Item(Parent);"),
                ],
                &[
                    "dir/item.rs imports dir/mod.rs (Parent)",
                    "dir/mod.rs imports dir/item.rs (Item)",
                ],
            ),
            (
                "a macro's argument, an inline module, and an item that a macro defines",
                &[
                    ("lib.rs", "mod a; mod b;"),
                    (
                        "a.rs",
                        "mod inner { use super::A; fn f() { x!(crate::b::B::new()); } } m!(A);",
                    ),
                    ("b.rs", "pub struct B; fn f() { use crate::a::{A}; }"),
                ],
                &["a.rs imports b.rs (B)", "b.rs imports a.rs (A)"],
            ),
        ];
        for (name, files, expected) in cases {
            let found: Vec<String> = describe(&cycle(imports_of(files))).collect();
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn imports_of_higher_modules_and_of_modules_without_a_row_are_reported() {
        let imports = imports_of(&[
            ("lib.rs", "mod low; mod high; mod new; use high::High;"),
            ("low/mod.rs", "mod inner; pub struct Low;"),
            ("low/inner.rs", "use super::Low; use crate::high::High;"),
            ("high.rs", "use crate::low::Low; use crate::new::New; pub struct High;"),
            ("new.rs", "pub struct New;"),
        ]);
        let found = upward(&imports, &[&["low"], &["high"]]);
        let expected = ["high.rs imports new.rs (New)", "low/inner.rs imports high.rs (High)"];
        assert_eq!(found, expected.map(|import| format!("against the order: {import}")));
    }
}
