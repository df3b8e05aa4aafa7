//! Resolves imports and paths to the files that define their items.

use super::graph::Imports;
use super::paths::PathsInCode;
use super::source::{CrateSource, Import, ModulePath};

/// Maximum re-exports followed in a row, because they may form a cycle.
const MAX_REEXPORTS: usize = 16;

enum Target {
    Item { file: usize, name: String },
    Module(ModulePath),
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
    /// such as methods. `None` if it leads to another crate, or to an exported macro.
    fn resolve(&self, path: &[String], depth: usize) -> Option<Target> {
        let mut at = ModulePath::new();
        for (index, name) in path.iter().enumerate() {
            let module = &self.modules[&at];
            if module.children.contains(name) {
                at.push(name.clone());
                continue;
            }
            let follow = |import: &Import, rest: &[String]| {
                let base = self.absolute(&at, &import.path, depth)?;
                self.resolve(&[&base[..], rest].concat(), depth.checked_sub(1)?)
            };
            if module.definitions.contains(name) {
                return Some(Target::Item { file: module.file, name: name.clone() });
            }
            if let Some(import) = module.imports.iter().find(|import| import.name == *name) {
                return follow(import, &path[index + 1..]);
            }
            for glob in module.imports.iter().filter(|import| import.name == "*") {
                if let Some(Target::Module(base)) = follow(glob, &[])
                    && self.modules[&base].has(name)
                {
                    return follow(glob, &path[index..]);
                }
            }
            // A macro defines the item here. Exported macros belong to the crate root.
            let defined = Target::Item { file: module.file, name: name.clone() };
            return (!at.is_empty()).then_some(defined);
        }
        Some(Target::Module(at))
    }

    pub(super) fn imports(&self) -> Imports {
        let mut imports = Imports::new(self.files.clone());
        for (path, module) in &self.modules {
            let mut code = PathsInCode::default();
            module.code.iter().for_each(|tokens| code.scan(tokens.clone()));
            let uses = module.imports.iter().filter(|import| {
                // Re-exporting a child is no dependency unless the code here uses it too.
                let absolute = self.absolute(path, &import.path, MAX_REEXPORTS);
                let is_own_child = absolute.is_some_and(|absolute| absolute.starts_with(path));
                !(import.reexport && is_own_child) || code.names.contains(&import.name)
            });
            let uses = uses.map(|import| (&import.path, import.name == "*"));
            for (used, is_glob) in uses.chain(code.paths.iter().map(|path| (path, false))) {
                let absolute = self.absolute(path, used, MAX_REEXPORTS);
                match absolute.and_then(|path| self.resolve(&path, MAX_REEXPORTS)) {
                    Some(Target::Item { file, name }) => imports.add(module.file, file, &name),
                    Some(Target::Module(target)) if is_glob => {
                        let target = &self.modules[&target];
                        if !target.definitions.is_empty() {
                            imports.add(module.file, target.file, "*");
                        }
                    }
                    // An imported module itself is no dependency. Paths beginning with its name
                    // lead to its items.
                    Some(Target::Module(_)) | None => {}
                }
            }
        }
        imports
    }
}
