//! Resolves imports and paths to the files in which their items are defined.

use super::graph::Imports;
use super::paths::PathsInCode;
use super::source::{CrateSource, ModulePath};

/// Maximum number of re-exports that are followed one after the other, since they may form a cycle.
const MAX_REEXPORTS: usize = 16;

/// What a path leads to.
enum Resolved {
    /// An item that is defined in a file.
    Item { file: usize, name: String },
    /// A module.
    Module(ModulePath),
    /// An item of another crate.
    External,
    /// A macro with `#[macro_export]`, or an item that a macro defines.
    DefinedByMacro { file: usize, name: String },
}

impl CrateSource {
    /// Converts a path as it is written in a module into one from the crate's root; `None` if it
    /// leads to another crate. `depth` is the number of re-exports that may still be followed.
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
                // In `use time::time;` the first name is a crate, not what this import defines.
                let import = imports.find(|import| import.name == name && import.path != path)?;
                if depth == 0 {
                    return None;
                }
                self.absolute(module, &import.path, depth - 1)?
            }
        };
        Some([&base[..], rest].concat())
    }

    /// Follows a path from the crate's root to the definition of its item. Names after an item,
    /// such as those of methods, are ignored.
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
            return Resolved::DefinedByMacro { file, name: name.clone() };
        }
        Resolved::Module(at)
    }

    /// The graph of imports between the files of the crate.
    pub(super) fn imports(&self) -> Imports {
        let mut imports = Imports::new(self.files.clone());
        for (path, module) in &self.modules {
            let mut code = PathsInCode::default();
            module.code.iter().for_each(|tokens| code.scan(tokens.clone()));
            for import in &module.imports {
                let Some(absolute) = self.absolute(path, &import.path, MAX_REEXPORTS) else {
                    continue;
                };
                // Re-exports of children are no dependency unless the code here uses them too.
                let own_child = import.reexport && absolute.starts_with(path);
                if own_child && !code.names.contains(&import.name) {
                    continue;
                }
                match self.resolve(&absolute, MAX_REEXPORTS) {
                    Resolved::Module(target) if import.name == "*" => {
                        let target = &self.modules[&target];
                        if !target.definitions.is_empty() {
                            imports.add(module.file, target.file, "*");
                        }
                    }
                    // An imported module is no dependency in itself. Paths in the code that begin
                    // with its name lead to its items; they follow below.
                    Resolved::Module(_) | Resolved::External => {}
                    Resolved::Item { file, name } | Resolved::DefinedByMacro { file, name } => {
                        imports.add(module.file, file, &name);
                    }
                }
            }
            for inline in &code.paths {
                let Some(absolute) = self.absolute(path, inline, MAX_REEXPORTS) else {
                    continue;
                };
                match self.resolve(&absolute, MAX_REEXPORTS) {
                    Resolved::Module(_) | Resolved::External => {}
                    Resolved::Item { file, name } | Resolved::DefinedByMacro { file, name } => {
                        imports.add(module.file, file, &name);
                    }
                }
            }
        }
        imports
    }
}
