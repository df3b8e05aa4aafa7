//! `cargo xtask layers`: imports between the files of each crate must not form circles, and the
//! top-level modules of dq-core must import only lower ones.
//!
//! Reads the sources of each workspace crate, without code that is compiled only for tests. A file
//! depends on another if a `use` or an inline path in it leads to an item that is defined there;
//! re-exports are followed. A module that only declares and re-exports its children does not depend
//! on them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Item, ItemUse, UseTree, Visibility};

use crate::run::{Done, root};

/// Top-level modules of dq-core from lowest to highest. A module may import only modules of lower
/// rows; `lib.rs` may import all.
const CORE_ORDER: [&[&str]; 13] = [
    &["error"],
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
    &["runner"],
    &["prelude"],
];

/// Checks all workspace crates.
pub(crate) fn layers() -> Done {
    let mut problems = Vec::new();
    let mut files = 0;
    for dir in crate_dirs()? {
        let Some(source) = CrateSource::load(&dir, &|path| fs::read_to_string(path).ok())? else {
            continue;
        };
        files += source.files.len();
        let imports = source.imports();
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        problems.extend(imports.circles().iter().map(|circle| format!("{name}: {circle}")));
        if name == "dq-core" {
            let order: Vec<&[&str]> = CORE_ORDER.to_vec();
            problems
                .extend(imports.upward(&order).iter().map(|import| format!("{name}: {import}")));
        }
    }
    if problems.is_empty() {
        println!("layers: {files} files, no circles");
        return Ok(());
    }
    Err(format!("{} problems with imports:\n\n{}", problems.len(), problems.join("\n")))
}

/// The root package and the members of the workspace.
fn crate_dirs() -> Done<Vec<PathBuf>> {
    let root = root();
    let path = root.join("Cargo.toml");
    let manifest = fs::read_to_string(&path)
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    let members = manifest
        .split_once("members = [")
        .and_then(|(_, rest)| rest.split_once(']'))
        .ok_or("Cargo.toml has no `members = […]`")?
        .0;
    let members = members.split('"').skip(1).step_by(2).map(|member| root.join(member));
    Ok(std::iter::once(root.clone()).chain(members).collect())
}

/// Names from the crate's root to a module.
type ModulePath = Vec<String>;

/// A name that a `use` brings into a module.
#[derive(Debug)]
struct Import {
    /// The path as it is written.
    path: Vec<String>,
    /// The name in the importing module; `*` for all.
    name: String,
    reexport: bool,
}

/// A module; an inline one shares the file of its parent.
#[derive(Debug, Default)]
struct Module {
    file: usize,
    children: BTreeSet<String>,
    definitions: BTreeSet<String>,
    imports: Vec<Import>,
    /// The tokens of all items but `use` and `mod`.
    code: Vec<TokenStream>,
}

/// The modules of one crate.
#[derive(Debug, Default)]
struct CrateSource {
    /// Paths relative to `src`.
    files: Vec<String>,
    modules: BTreeMap<ModulePath, Module>,
    /// The files of macros with `#[macro_export]`, which are items of the crate's root.
    exported_macros: BTreeMap<String, usize>,
}

/// Reads a file, if it exists.
type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// What a path leads to.
enum Resolved {
    Item {
        file: usize,
        name: String,
    },
    Module(ModulePath),
    /// An item of another crate.
    External,
    /// A macro with `#[macro_export]`, or an item that a macro defines.
    Unknown {
        file: usize,
        name: String,
    },
}

impl CrateSource {
    /// Reads the modules of the crate in `dir`; `None` if it has neither library nor program.
    fn load(dir: &Path, read: Read<'_>) -> Done<Option<Self>> {
        let src = dir.join("src");
        let mut source = Self::default();
        for root in ["lib.rs", "main.rs"] {
            if let Some(text) = read(&src.join(root)) {
                source.add_file(&src, Path::new(root), &text, Vec::new(), read)?;
                return Ok(Some(source));
            }
        }
        Ok(None)
    }

    fn add_file(
        &mut self,
        src: &Path,
        file: &Path,
        text: &str,
        module: ModulePath,
        read: Read<'_>,
    ) -> Done {
        let parsed = syn::parse_file(text)
            .map_err(|error| format!("{} cannot be parsed: {error}", src.join(file).display()))?;
        let number = self.files.len();
        self.files.push(file.to_string_lossy().replace('\\', "/"));
        let is_dir_root = file.file_stem().is_some_and(|stem| {
            ["lib", "main", "mod"].iter().any(|root| stem.eq_ignore_ascii_case(root))
        });
        let dir = if is_dir_root {
            file.parent().unwrap_or(file).into()
        } else {
            file.with_extension("")
        };
        self.add_items(src, &dir, number, parsed.items, module, read)
    }

    fn add_items(
        &mut self,
        src: &Path,
        dir: &Path,
        file: usize,
        items: Vec<Item>,
        path: ModulePath,
        read: Read<'_>,
    ) -> Done {
        let mut module = Module { file, ..Module::default() };
        for item in items {
            if attributes(&item).iter().any(is_for_tests) {
                continue;
            }
            match item {
                Item::Use(item) => add_imports(&item, &mut module.imports),
                Item::Mod(item) => {
                    let name = item.ident.to_string();
                    let child = [&path[..], std::slice::from_ref(&name)].concat();
                    if let Some((_, items)) = item.content {
                        self.add_items(src, &dir.join(&name), file, items, child, read)?;
                    } else {
                        let files =
                            [dir.join(format!("{name}.rs")), dir.join(&name).join("mod.rs")];
                        let found =
                            files.iter().find_map(|file| Some((file, read(&src.join(file))?)));
                        let (file, text) = found.ok_or_else(|| {
                            format!("{}: module {name} has no file", src.join(dir).display())
                        })?;
                        self.add_file(src, file, &text, child, read)?;
                    }
                    module.children.insert(name);
                }
                item => {
                    if let Item::Macro(item) = &item
                        && item
                            .attrs
                            .iter()
                            .any(|attribute| attribute.path().is_ident("macro_export"))
                    {
                        let name = item.ident.iter().map(|name| (name.to_string(), file));
                        self.exported_macros.extend(name);
                    }
                    module.definitions.extend(defined_name(&item));
                    module.code.push(item.into_token_stream());
                }
            }
        }
        self.modules.insert(path, module);
        Ok(())
    }

    /// The path from the crate's root for a path as it is written in a module; `None` if it leads
    /// to another crate.
    fn absolute(&self, module: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        let base = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => {
                let mut up = module.split_last()?.1.to_vec();
                let supers = rest.iter().take_while(|name| *name == "super").count();
                up.truncate(up.len().checked_sub(supers)?);
                return Some([&up[..], &rest[supers..]].concat());
            }
            name if self.modules[module].children.contains(name) => {
                return Some([module, path].concat());
            }
            name => {
                let mut imports = self.modules[module].imports.iter();
                let import = imports.find(|import| import.name == name && import.path != path)?;
                if depth == 0 {
                    return None;
                }
                self.absolute(module, &import.path, depth - 1)?
            }
        };
        Some([&base[..], rest].concat())
    }

    /// Follows a path from the crate's root to the definition.
    fn resolve(&self, path: &[String], depth: usize) -> Resolved {
        let mut at = ModulePath::new();
        for (index, name) in path.iter().enumerate() {
            let module = &self.modules[&at];
            if module.children.contains(name) {
                at.push(name.clone());
                continue;
            }
            if module.definitions.contains(name) {
                return Resolved::Item { file: module.file, name: name.clone() };
            }
            let rest = &path[index + 1..];
            let follow = |target: &[String], rest: &[String]| {
                let absolute = self.absolute(&at, target, depth);
                absolute.map_or(Resolved::External, |base| {
                    self.resolve(&[&base[..], rest].concat(), depth - 1)
                })
            };
            if depth > 0 {
                if let Some(import) = module.imports.iter().find(|import| import.name == *name) {
                    return follow(&import.path, rest);
                }
                for glob in module.imports.iter().filter(|import| import.name == "*") {
                    let found = follow(&glob.path, &path[index..]);
                    if matches!(found, Resolved::Item { .. } | Resolved::Module(_)) {
                        return found;
                    }
                }
            }
            let macro_file = self.exported_macros.get(name).filter(|_| at.is_empty());
            let file = macro_file.copied().unwrap_or(module.file);
            return Resolved::Unknown { file, name: name.clone() };
        }
        Resolved::Module(at)
    }

    /// The imports between files.
    fn imports(&self) -> Imports {
        let mut imports = Imports { files: self.files.clone(), by_file: BTreeMap::new() };
        for (path, module) in &self.modules {
            let mut code = PathsInCode::default();
            module.code.iter().for_each(|tokens| code.scan(tokens.clone()));
            for import in &module.imports {
                let Some(absolute) = self.absolute(path, &import.path, DEPTH) else {
                    continue;
                };
                // Re-exports of children are no dependency unless the code here uses them too.
                let own_child = import.reexport && absolute.starts_with(path);
                if own_child && !code.names.contains(&import.name) {
                    continue;
                }
                match self.resolve(&absolute, DEPTH) {
                    Resolved::Module(target) if import.name == "*" => {
                        let target = &self.modules[&target];
                        if !target.definitions.is_empty() {
                            imports.add(module.file, target.file, "*");
                        }
                    }
                    // Only the paths that begin with the module's name matter; see below.
                    Resolved::Module(_) | Resolved::External => {}
                    Resolved::Item { file, name } | Resolved::Unknown { file, name } => {
                        imports.add(module.file, file, &name);
                    }
                }
            }
            for inline in &code.paths {
                let Some(absolute) = self.absolute(path, inline, DEPTH) else {
                    continue;
                };
                match self.resolve(&absolute, DEPTH) {
                    Resolved::Module(_) | Resolved::External => {}
                    Resolved::Item { file, name } | Resolved::Unknown { file, name } => {
                        imports.add(module.file, file, &name);
                    }
                }
            }
        }
        imports
    }
}

/// Re-exports that are followed one after the other; more would be a circle of them.
const DEPTH: usize = 16;

/// All paths of two and more names in code, and all names.
#[derive(Debug, Default)]
struct PathsInCode {
    paths: BTreeSet<Vec<String>>,
    names: BTreeSet<String>,
}

impl PathsInCode {
    fn scan(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            if is_test_attribute(&tokens[at..]) {
                at += 2;
                // The item, which ends with its body or a semicolon.
                while at < tokens.len() && !ends_item(&tokens[at]) {
                    at += 1;
                }
                at += 1;
                continue;
            }
            match &tokens[at] {
                // A path with a leading `::` begins with the name of a crate.
                TokenTree::Ident(_) if at >= 2 && is_separator(&tokens[at - 2..]) => at += 1,
                TokenTree::Ident(_) => at += self.scan_path(&tokens[at..], &[]),
                TokenTree::Group(group) => {
                    let inner = group.stream();
                    // `pub(in crate::module)` is no import.
                    let visibility = group.delimiter() == Delimiter::Parenthesis
                        && inner
                            .clone()
                            .into_iter()
                            .next()
                            .is_some_and(|token| is_ident(&token, "in"));
                    if !visibility {
                        self.scan(inner);
                    }
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }

    /// Reads the path at the beginning of the tokens, with the groups of a `use`; returns how many
    /// tokens it takes.
    fn scan_path(&mut self, tokens: &[TokenTree], base: &[String]) -> usize {
        let mut path = base.to_vec();
        let mut at = 0;
        while let Some(TokenTree::Ident(ident)) = tokens.get(at) {
            let name = ident.to_string();
            self.names.insert(name.clone());
            path.push(name);
            at += 1;
            if !is_separator(&tokens[at..]) {
                break;
            }
            match tokens.get(at + 2) {
                Some(TokenTree::Ident(_)) => at += 2,
                Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    for part in inner.split(|token| is_punct(token, ',')) {
                        self.scan_path(part, &path);
                    }
                    return at + 3;
                }
                _ => break,
            }
        }
        if path.len() > 1 {
            self.paths.insert(path);
        }
        at.max(1)
    }
}

fn is_ident(token: &TokenTree, name: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == name)
}

fn is_punct(token: &TokenTree, punct: char) -> bool {
    matches!(token, TokenTree::Punct(found) if found.as_char() == punct)
}

/// Whether the tokens begin with `::`.
fn is_separator(tokens: &[TokenTree]) -> bool {
    tokens.len() >= 2 && is_punct(&tokens[0], ':') && is_punct(&tokens[1], ':')
}

fn ends_item(token: &TokenTree) -> bool {
    is_punct(token, ';')
        || matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

/// Whether the tokens begin with `#[cfg(test)]`.
fn is_test_attribute(tokens: &[TokenTree]) -> bool {
    match tokens {
        [hash, TokenTree::Group(group), ..] if is_punct(hash, '#') => {
            is_test_cfg(&group.stream().to_string())
        }
        _ => false,
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    is_test_cfg(&attribute.meta.to_token_stream().to_string())
}

fn is_test_cfg(meta: &str) -> bool {
    let meta: String = meta.split_whitespace().collect();
    meta == "cfg(test)" || meta.starts_with("cfg(all(test,")
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn defined_name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// The names that a `use` imports, one by one.
fn add_imports(item: &ItemUse, imports: &mut Vec<Import>) {
    // A path that begins with `::` leads to another crate.
    if item.leading_colon.is_none() {
        let reexport = !matches!(item.vis, Visibility::Inherited);
        add_import_tree(&item.tree, &[], reexport, imports);
    }
}

fn add_import_tree(tree: &UseTree, base: &[String], reexport: bool, imports: &mut Vec<Import>) {
    let mut add = |last: Option<String>, name: String| {
        let path = base.iter().cloned().chain(last.filter(|last| last != "self")).collect();
        imports.push(Import { path, name, reexport });
    };
    match tree {
        UseTree::Path(tree) => {
            let base = [base, &[tree.ident.to_string()]].concat();
            add_import_tree(&tree.tree, &base, reexport, imports);
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                add_import_tree(tree, base, reexport, imports);
            }
        }
        UseTree::Name(tree) if tree.ident == "self" => {
            add(None, base.last().cloned().unwrap_or_default());
        }
        UseTree::Name(tree) => add(Some(tree.ident.to_string()), tree.ident.to_string()),
        UseTree::Rename(tree) => add(Some(tree.ident.to_string()), tree.rename.to_string()),
        UseTree::Glob(_) => add(None, "*".to_owned()),
    }
}

/// The imports between the files of a crate.
#[derive(Debug)]
struct Imports {
    files: Vec<String>,
    /// By importing file: the imported files, with the names.
    by_file: BTreeMap<usize, BTreeMap<usize, BTreeSet<String>>>,
}

impl Imports {
    fn add(&mut self, from: usize, to: usize, name: &str) {
        if from != to {
            let names = self.by_file.entry(from).or_default().entry(to).or_default();
            names.insert(name.to_owned());
        }
    }

    fn imported_by(&self, file: usize) -> impl Iterator<Item = usize> {
        self.by_file.get(&file).into_iter().flatten().map(|(to, _)| *to)
    }

    /// One shortest circle through each file that is in any, without repetitions.
    fn circles(&self) -> Vec<String> {
        let mut covered = BTreeSet::new();
        let mut circles = Vec::new();
        for file in 0..self.files.len() {
            if covered.contains(&file) {
                continue;
            }
            if let Some(circle) = self.shortest_circle(file) {
                circles.push(self.describe(&circle));
                covered.extend(circle);
            }
        }
        circles
    }

    /// The shortest way from a file back to itself.
    fn shortest_circle(&self, start: usize) -> Option<Vec<usize>> {
        let mut reached_from = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(file) = queue.pop_front() {
            for next in self.imported_by(file) {
                if next == start {
                    let mut circle = vec![file];
                    while let Some(before) = reached_from.get(&circle[circle.len() - 1]) {
                        circle.push(*before);
                    }
                    circle.reverse();
                    return Some(circle);
                }
                if next != start && !reached_from.contains_key(&next) {
                    reached_from.insert(next, file);
                    queue.push_back(next);
                }
            }
        }
        None
    }

    fn describe(&self, circle: &[usize]) -> String {
        let mut text = format!("a circle of {} files\n", circle.len());
        for (place, from) in circle.iter().enumerate() {
            let to = circle[(place + 1) % circle.len()];
            text += &format!("    {}\n", self.describe_import(*from, to));
        }
        text
    }

    fn describe_import(&self, from: usize, to: usize) -> String {
        let names: Vec<&str> = self.by_file[&from][&to].iter().map(String::as_str).collect();
        format!("{} imports {} ({})", self.files[from], self.files[to], names.join(", "))
    }

    /// The imports from a top-level module to one that is not in a lower row, and the top-level
    /// modules without a row.
    fn upward(&self, order: &[&[&str]]) -> Vec<String> {
        let row = |module: &str| order.iter().position(|row| row.contains(&module));
        let mut problems = Vec::new();
        for (from, targets) in &self.by_file {
            for to in targets.keys() {
                let (lower, upper) = (top_module(&self.files[*to]), top_module(&self.files[*from]));
                if upper == "lib" || upper == lower {
                    continue;
                }
                let allowed = match (row(upper), row(lower)) {
                    (Some(upper), Some(lower)) => lower < upper,
                    _ => false,
                };
                if !allowed {
                    let import = self.describe_import(*from, *to);
                    problems.push(format!("{import}: {upper} may not import {lower}\n"));
                }
            }
        }
        let modules: BTreeSet<&str> = self.files.iter().map(|file| top_module(file)).collect();
        let missing = modules.iter().filter(|module| **module != "lib" && row(module).is_none());
        problems.extend(missing.map(|module| format!("{module} has no place in the order\n")));
        problems
    }
}

/// `model` for `model/job.rs` and `model.rs`.
fn top_module(file: &str) -> &str {
    let first = file.split('/').next().unwrap_or(file);
    first.strip_suffix(".rs").unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(files: &[(&str, &str)]) -> Imports {
        let read = |path: &Path| {
            let name = path.strip_prefix("src").ok()?.to_str()?;
            files.iter().find(|(file, _)| *file == name).map(|(_, text)| (*text).to_owned())
        };
        let source = CrateSource::load(Path::new(""), &read);
        source.expect("the files are valid").expect("there is a lib.rs").imports()
    }

    #[test]
    fn a_circle_is_found_with_the_names_that_close_it() {
        let imports = imports(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; fn f() { crate::c::work(1); }"),
            ("c.rs", "use super::a; pub fn work(_: u8) -> a::A { todo!() }"),
        ]);
        let expected = "a circle of 3 files\n    a.rs imports b.rs (B)\n    \
                        b.rs imports c.rs (work)\n    c.rs imports a.rs (A)\n";
        assert_eq!(imports.circles(), [expected]);
    }

    #[test]
    fn imports_in_one_direction_are_no_circle() {
        let imports = imports(&[
            ("lib.rs", "mod a; mod b; pub use a::A; pub fn f() -> b::B { b::B }"),
            ("a.rs", "use std::fmt; use crate::b::{self, B}; pub struct A(B, b::C);"),
            ("b.rs", "pub struct B; pub struct C; pub(in crate::a) struct D;"),
        ]);
        assert!(imports.circles().is_empty());
        assert_eq!(imports.imported_by(1).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn reexports_are_followed_and_are_no_dependency_of_their_module() {
        let imports = imports(&[
            ("lib.rs", "mod dir; mod user;"),
            (
                "dir/mod.rs",
                "mod item; mod other; pub(crate) use self::item::Item; pub use other::*;",
            ),
            ("dir/item.rs", "use super::Other; pub(crate) struct Item(Other);"),
            ("dir/other.rs", "pub struct Other;"),
            ("user.rs", "use crate::dir::{Item, Other};"),
        ]);
        assert!(imports.circles().is_empty());
        let user = imports.files.iter().position(|file| file == "user.rs").expect("a file");
        let targets = imports.imported_by(user).map(|file| imports.files[file].as_str());
        assert_eq!(targets.collect::<Vec<_>>(), ["dir/item.rs", "dir/other.rs"]);
    }

    #[test]
    fn code_of_a_module_file_depends_on_its_children() {
        let imports = imports(&[
            ("lib.rs", "mod dir;"),
            (
                "dir/mod.rs",
                "mod item; pub use item::Item; pub struct Parent; fn f() -> Item { todo!() }",
            ),
            ("dir/item.rs", "use super::Parent; pub struct Item(Parent);"),
        ]);
        assert_eq!(imports.circles().len(), 1);
    }

    #[test]
    fn code_for_tests_is_ignored() {
        let imports = imports(&[
            ("lib.rs", "mod a; mod b; #[cfg(test)] mod has_no_file;"),
            ("a.rs", "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }"),
            (
                "b.rs",
                "use crate::a::A; pub struct B; impl A { #[cfg(test)] fn f() { crate::a::g() } }",
            ),
        ]);
        assert!(imports.circles().is_empty());
    }

    #[test]
    fn the_order_of_modules_is_checked() {
        let imports = imports(&[
            ("lib.rs", "mod low; mod high; mod new;"),
            ("low/mod.rs", "mod inner;"),
            ("low/inner.rs", "use crate::high::High;"),
            ("high.rs", "pub struct High;"),
            ("new.rs", "pub struct New;"),
        ]);
        let problems = imports.upward(&[&["low"], &["high"]]);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].ends_with("low may not import high\n"), "{problems:?}");
        assert_eq!(problems[1], "new has no place in the order\n");
    }
}
