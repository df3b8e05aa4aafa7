//! Reads the modules of a crate: their definitions, imports and code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::{Attribute, Item, ItemUse, UseTree, Visibility};

use super::paths::is_test_cfg;
use crate::run::Result;

/// Names from the crate's root to a module.
pub(super) type ModulePath = Vec<String>;

/// A name that a `use` brings into a module.
#[derive(Debug)]
pub(super) struct Import {
    /// The path as it is written, without `self` or `*` at its end.
    pub(super) path: Vec<String>,
    /// The name in the importing module; `*` for all.
    pub(super) name: String,
    /// Whether the `use` has a visibility.
    pub(super) reexport: bool,
}

/// A module; an inline one shares the file of its parent.
#[derive(Debug, Default)]
pub(super) struct Module {
    /// Index in [`CrateSource::files`].
    pub(super) file: usize,
    /// Names of its modules.
    pub(super) children: BTreeSet<String>,
    /// Names of the items that are defined in it.
    pub(super) definitions: BTreeSet<String>,
    pub(super) imports: Vec<Import>,
    /// The tokens of all items but `use` and `mod`.
    pub(super) code: Vec<TokenStream>,
}

/// The modules of one crate.
#[derive(Debug, Default)]
pub(super) struct CrateSource {
    /// Paths relative to `src`.
    pub(super) files: Vec<String>,
    pub(super) modules: BTreeMap<ModulePath, Module>,
    /// The files of macros with `#[macro_export]`, which are items of the crate's root.
    pub(super) exported_macros: BTreeMap<String, usize>,
}

/// Returns the text of a file; `None` if it does not exist.
pub(super) type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

impl CrateSource {
    /// Reads the modules of the crate in `dir`; `None` if it has neither library nor program.
    /// A program beside a library and those in `src/bin` are not read.
    pub(super) fn load(dir: &Path, read: Read<'_>) -> Result<Option<Self>> {
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

    /// Adds a file, which holds the module with this path. `src` is the crate's `src`, to which
    /// `file` is relative.
    fn add_file(
        &mut self,
        src: &Path,
        file: &Path,
        text: &str,
        module: ModulePath,
        read: Read<'_>,
    ) -> Result {
        let parsed = syn::parse_file(text)
            .map_err(|error| format!("{} cannot be parsed: {error}", src.join(file).display()))?;
        let number = self.files.len();
        self.files.push(file.to_string_lossy().replace('\\', "/"));
        let is_dir_root = file
            .file_stem()
            .is_some_and(|stem| ["lib", "main", "mod"].iter().any(|root| stem == *root));
        let dir = if is_dir_root {
            file.parent().unwrap_or(file).into()
        } else {
            file.with_extension("")
        };
        self.add_items(src, &dir, number, parsed.items, module, read)
    }

    /// Adds a module with its items. `dir` is the directory with the files of its modules.
    fn add_items(
        &mut self,
        src: &Path,
        dir: &Path,
        file: usize,
        items: Vec<Item>,
        path: ModulePath,
        read: Read<'_>,
    ) -> Result {
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
}

/// Whether an attribute excludes its item from builds without tests.
fn is_for_tests(attribute: &Attribute) -> bool {
    is_test_cfg(&attribute.meta.to_token_stream().to_string())
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

/// The name by which other modules can import an item; `None` if it has none.
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

/// Adds the names of a part of a `use`, whose path begins with `base`.
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
