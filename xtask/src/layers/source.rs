//! Reads a crate's modules: definitions, imports and code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::{Attribute, Item, ItemUse, UseTree, Visibility};

use super::paths::is_test_cfg;
use crate::run::Result;

/// Names from the crate root to a module.
pub(super) type ModulePath = Vec<String>;

#[derive(Debug)]
pub(super) struct Import {
    /// The path as written, without a trailing `self` or `*`.
    pub(super) path: Vec<String>,
    /// The name in the importing module; `*` for all.
    pub(super) name: String,
    /// Whether the `use` has a visibility.
    pub(super) is_reexport: bool,
}

/// A module. An inline module shares its parent's file.
#[derive(Debug, Default)]
pub(super) struct Module {
    /// An index of [`CrateSource::files`].
    pub(super) file: usize,
    /// The names of the child modules.
    pub(super) children: BTreeSet<String>,
    /// The names of the items defined here.
    pub(super) definitions: BTreeSet<String>,
    pub(super) imports: Vec<Import>,
    /// Tokens of all items except `use` and `mod`.
    pub(super) code: Vec<TokenStream>,
}

impl Module {
    /// Whether the module defines, declares or imports the name.
    pub(super) fn has(&self, name: &String) -> bool {
        self.children.contains(name)
            || self.definitions.contains(name)
            || self.imports.iter().any(|import| import.name == *name)
    }
}

/// A crate's files, relative to `src`, and its modules.
#[derive(Debug, Default)]
pub(super) struct CrateSource {
    pub(super) files: Vec<String>,
    pub(super) modules: BTreeMap<ModulePath, Module>,
}

/// Returns a file's text; `None` if it does not exist.
pub(super) type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

impl CrateSource {
    /// Reads the crate in `dir`; `None` without library or program. Skips a program beside a
    /// library, and `src/bin`.
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
        let file_index = self.files.len();
        self.files.push(file.to_string_lossy().replace('\\', "/"));
        let is_dir_root = file
            .file_stem()
            .is_some_and(|stem| ["lib", "main", "mod"].iter().any(|root| stem == *root));
        let dir = if is_dir_root {
            file.parent().unwrap_or(file).into()
        } else {
            file.with_extension("")
        };
        self.add_items(src, &dir, file_index, parsed.items, module, read)
    }

    /// Adds a module's items. `dir` holds its child modules' files.
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
            let (attributes, name) = parts(&item);
            if attributes.iter().any(is_for_tests) {
                continue;
            }
            let name = name.map(Ident::to_string);
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
                _ => {
                    module.definitions.extend(name);
                    module.code.push(item.into_token_stream());
                }
            }
        }
        self.modules.insert(path, module);
        Ok(())
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    is_test_cfg(&attribute.meta.to_token_stream().to_string())
}

/// An item's attributes and name.
fn parts(item: &Item) -> (&[Attribute], Option<&Ident>) {
    match item {
        Item::Const(item) => (&item.attrs, Some(&item.ident)),
        Item::Enum(item) => (&item.attrs, Some(&item.ident)),
        Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
        Item::Impl(item) => (&item.attrs, None),
        Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
        Item::Mod(item) => (&item.attrs, Some(&item.ident)),
        Item::Static(item) => (&item.attrs, Some(&item.ident)),
        Item::Struct(item) => (&item.attrs, Some(&item.ident)),
        Item::Trait(item) => (&item.attrs, Some(&item.ident)),
        Item::Type(item) => (&item.attrs, Some(&item.ident)),
        Item::Use(item) => (&item.attrs, None),
        _ => (&[], None),
    }
}

fn add_imports(item: &ItemUse, imports: &mut Vec<Import>) {
    // A leading `::` means another crate.
    if item.leading_colon.is_none() {
        let is_reexport = !matches!(item.vis, Visibility::Inherited);
        add_import_tree(&item.tree, &[], is_reexport, imports);
    }
}

fn add_import_tree(tree: &UseTree, base: &[String], is_reexport: bool, imports: &mut Vec<Import>) {
    let mut add = |last: Option<String>, name: String| {
        let path = base.iter().cloned().chain(last.filter(|last| last != "self")).collect();
        imports.push(Import { path, name, is_reexport });
    };
    match tree {
        UseTree::Path(tree) => {
            let base = [base, &[tree.ident.to_string()]].concat();
            add_import_tree(&tree.tree, &base, is_reexport, imports);
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                add_import_tree(tree, base, is_reexport, imports);
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
