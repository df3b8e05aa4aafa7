//! Resolves imports and paths to the files that define their items.

use super::graph::Imports;
use super::paths::PathsInCode;
use super::source::{CrateSource, Import, Module, ModulePath};

/// The most re-exports that are followed in a row, because they may form a cycle.
const MAX_REEXPORTS: usize = 16;

/// Where a path leads within the crate.
enum Target {
    /// An item, with the index of the file that defines it.
    Item {
        file: usize,
        name: String,
    },
    Module(ModulePath),
}

impl CrateSource {
    /// Finds the imports between the crate's files.
    pub(super) fn imports(&self) -> Imports {
        let mut imports = Imports::new(self.files.clone());
        for (path, module) in &self.modules {
            let mut code = PathsInCode::default();
            module.code.iter().for_each(|tokens| code.scan(tokens.clone()));
            for import in &module.imports {
                // Re-exporting a child is no dependency unless the code here uses it too.
                if self.is_child_reexport(path, import) && !code.names.contains(&import.name) {
                    continue;
                }
                match self.target(path, &import.path) {
                    Some(Target::Module(target)) if import.name == "*" => {
                        let target = &self.modules[&target];
                        if !target.definitions.is_empty() {
                            imports.add(module.file, target.file, "*");
                        }
                    }
                    target => add_item(&mut imports, module, target),
                }
            }
            for used in &code.paths {
                add_item(&mut imports, module, self.target(path, used));
            }
        }
        imports
    }

    fn is_child_reexport(&self, module: &[String], import: &Import) -> bool {
        let absolute = self.absolute(module, &import.path, MAX_REEXPORTS);
        import.is_reexport && absolute.is_some_and(|absolute| absolute.starts_with(module))
    }

    /// Where a path leads that is written in a module. `None` if it leads to another crate.
    fn target(&self, module: &[String], path: &[String]) -> Option<Target> {
        let absolute = self.absolute(module, path, MAX_REEXPORTS)?;
        self.resolve(&absolute, MAX_REEXPORTS)
    }

    /// Converts a path as written in a module to one from the crate root. `None` if it leads to
    /// another crate. `depth` limits the remaining re-exports.
    fn absolute(&self, module: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        let base = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => {
                let (_, parent) = module.split_last()?;
                let more_supers = rest.iter().take_while(|name| *name == "super").count();
                let ancestor = &parent[..parent.len().checked_sub(more_supers)?];
                return Some([ancestor, &rest[more_supers..]].concat());
            }
            name if self.modules[module].children.contains(name) => {
                return Some([module, path].concat());
            }
            name => {
                let mut imports = self.modules[module].imports.iter();
                // In `use time::time;` the first name is a crate, not this import's item.
                let import = imports.find(|import| import.name == name && import.path != path)?;
                self.absolute(module, &import.path, depth.checked_sub(1)?)?
            }
        };
        Some([&base[..], rest].concat())
    }

    /// Follows a path from the crate root to its item's definition. Ignores names after an item,
    /// such as methods. `None` if it leads to another crate, or to an exported macro.
    fn resolve(&self, path: &[String], depth: usize) -> Option<Target> {
        let is_module = |length: &usize| self.modules.contains_key(&path[..*length]);
        let length = (0..=path.len()).take_while(is_module).last()?;
        let (module_path, rest) = path.split_at(length);
        let Some((name, after)) = rest.split_first() else {
            return Some(Target::Module(module_path.to_vec()));
        };
        let module = &self.modules[module_path];
        let defined_here = Target::Item { file: module.file, name: name.clone() };
        if module.definitions.contains(name) {
            return Some(defined_here);
        }
        // Goes on where an import of this module leads.
        let follow = |import: &Import, rest: &[String]| {
            let base = self.absolute(module_path, &import.path, depth)?;
            self.resolve(&[&base[..], rest].concat(), depth.checked_sub(1)?)
        };
        if let Some(import) = module.imports.iter().find(|import| import.name == *name) {
            return follow(import, after);
        }
        for glob in module.imports.iter().filter(|import| import.name == "*") {
            if let Some(Target::Module(base)) = follow(glob, &[])
                && self.modules[&base].has(name)
            {
                return follow(glob, rest);
            }
        }
        // A macro defines the item here. Exported macros belong to the crate root.
        (!module_path.is_empty()).then_some(defined_here)
    }
}

/// Adds an import of an item. An imported module itself is no dependency: paths that begin with its
/// name lead to its items.
fn add_item(imports: &mut Imports, module: &Module, target: Option<Target>) {
    if let Some(Target::Item { file, name }) = target {
        imports.add(module.file, file, &name);
    }
}
