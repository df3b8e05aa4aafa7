//! Resolves imports and paths to the files that define their items.

use super::graph::Imports;
use super::paths::PathsInCode;
use super::source::{CrateSource, ModulePath};

/// Maximum re-exports followed in a row, because they may form a cycle.
const MAX_REEXPORTS: usize = 16;

enum Resolved {
    Item {
        file: usize,
        name: String,
    },
    Module(ModulePath),
    External,
    /// A macro with `#[macro_export]`, or an item defined by a macro.
    DefinedByMacro {
        file: usize,
        name: String,
    },
}

impl CrateSource {
    /// Converts a path as written in a module to one from the crate root. `None` if it leads to
    /// another crate. `depth` limits the remaining re-exports.
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
                // In `use time::time;` the first name is a crate, not this import's item.
                let import = imports.find(|import| import.name == name && import.path != path)?;
                if depth == 0 {
                    return None;
                }
                self.absolute(module, &import.path, depth - 1)?
            }
        };
        Some([&base[..], rest].concat())
    }

    /// Follows a path from the crate root to its item's definition. Ignores names after an item,
    /// such as methods.
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

    pub(super) fn imports(&self) -> Imports {
        let mut imports = Imports::new(self.files.clone());
        for (path, module) in &self.modules {
            let mut code = PathsInCode::default();
            module.code.iter().for_each(|tokens| code.scan(tokens.clone()));
            for import in &module.imports {
                let Some(absolute) = self.absolute(path, &import.path, MAX_REEXPORTS) else {
                    continue;
                };
                // Re-exporting a child is no dependency unless the code here uses it too.
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
                    // An imported module itself is no dependency. Paths that begin with its name
                    // lead to its items; see below.
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
