//! Reads a crate's modules: the names that each one defines, imports and uses. Works on tokens
//! rather than a syntax tree, so it also sees macro arguments. Leaves out code for tests.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::run::Result;

pub(super) type ModulePath = Vec<String>;

pub(super) type Modules = BTreeMap<ModulePath, Module>;

#[derive(Debug)]
pub(super) struct Import {
    /// The path as written, without a trailing `self` or `*`.
    pub(super) path: Vec<String>,
    /// The name in the importing module; `*` for all.
    pub(super) name: String,
    /// Whether the `use` has a visibility.
    pub(super) is_reexport: bool,
}

#[derive(Debug, Default)]
pub(super) struct Module {
    pub(super) file: String,
    pub(super) definitions: BTreeSet<String>,
    pub(super) imports: Vec<Import>,
    /// The paths in the code with two or more names.
    pub(super) paths: BTreeSet<Vec<String>>,
    /// All names in the code, also in paths. `use` items are no code.
    pub(super) names: BTreeSet<String>,
}

/// Keywords followed by the name of an item.
const ITEMS: [&str; 8] = ["const", "enum", "fn", "static", "struct", "trait", "type", "union"];

/// Reads the modules of a crate from its files: paths relative to `src`, and texts.
pub(super) fn read_modules(files: &[(String, String)]) -> Result<Modules> {
    let mut reader = Reader::default();
    for (file, text) in files {
        let tokens = text.parse().map_err(|error| format!("{file} cannot be parsed: {error}"))?;
        reader.read_module(file, module_path(file), tokens);
    }
    let Reader { mut modules, test_modules } = reader;
    modules.retain(|path, _| !test_modules.iter().any(|test| path.starts_with(test)));
    Ok(modules)
}

/// Returns `["model", "job"]` for `model/job.rs`, and `["model"]` for `model/mod.rs`.
fn module_path(file: &str) -> ModulePath {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let mut names: ModulePath = path.split('/').map(str::to_owned).collect();
    names.pop_if(|last| ["lib", "main", "mod"].contains(&last.as_str()));
    names
}

#[derive(Default)]
struct Reader {
    modules: Modules,
    test_modules: Vec<ModulePath>,
}

impl Reader {
    fn read_module(&mut self, file: &str, path: ModulePath, tokens: TokenStream) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = &tokens[..];
        let mut is_public = false;
        while let Some((token, after)) = rest.split_first() {
            rest = match rest {
                [hash, TokenTree::Group(attribute), item @ ..] if is_punct(hash, '#') => {
                    if !is_test_cfg(attribute) {
                        item
                    } else {
                        if let [TokenTree::Ident(word), TokenTree::Ident(name), end, ..] = item
                            && word == "mod"
                            && is_punct(end, ';')
                        {
                            self.test_modules.push(child(&path, name));
                        }
                        after_item(item)
                    }
                }
                // A lifetime, which may be `'static`.
                [quote, _, after @ ..] if is_punct(quote, '\'') => after,
                [TokenTree::Ident(word), TokenTree::Ident(name), body, after @ ..]
                    if word == "mod" =>
                {
                    if let TokenTree::Group(body) = body {
                        self.read_module(file, child(&path, name), body.stream());
                    }
                    after
                }
                [TokenTree::Ident(word), TokenTree::Ident(_), ..] if word == "use" => {
                    module.add_use(after, is_public)
                }
                [TokenTree::Ident(word), TokenTree::Ident(name), ..]
                    if ITEMS.iter().any(|keyword| word == keyword) =>
                {
                    module.definitions.insert(name.to_string());
                    after
                }
                [TokenTree::Ident(word), _, TokenTree::Ident(name), ..]
                    if word == "macro_rules" =>
                {
                    module.definitions.insert(name.to_string());
                    after
                }
                _ => module.add_code(rest),
            };
            is_public = match token {
                TokenTree::Ident(word) => word == "pub",
                // `pub(crate)`.
                TokenTree::Group(group) => group.delimiter() == Delimiter::Parenthesis,
                _ => false,
            };
        }
        self.modules.insert(path, module);
    }
}

impl Module {
    pub(super) fn has(&self, name: &String) -> bool {
        self.definitions.contains(name) || self.imports.iter().any(|import| import.name == *name)
    }

    /// Adds the imports of a `use`, given the tokens from there on. Returns the tokens after it.
    fn add_use<'t>(&mut self, tokens: &'t [TokenTree], is_reexport: bool) -> &'t [TokenTree] {
        let end = tokens.iter().position(|token| is_punct(token, ';'));
        let (tree, after) = tokens.split_at(end.unwrap_or(tokens.len()));
        self.add_import(tree, &[], is_reexport);
        after
    }

    /// Adds a `use` tree. `base` is the path before a group.
    fn add_import(&mut self, tree: &[TokenTree], base: &[String], is_reexport: bool) {
        let mut path = base.to_vec();
        let mut name = None;
        let mut rest = tree.iter();
        while let Some(token) = rest.next() {
            match token {
                TokenTree::Ident(word) if word == "as" => {
                    name = rest.next().map(TokenTree::to_string)
                }
                TokenTree::Ident(word) if word == "self" && !path.is_empty() => {}
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Punct(punct) if punct.as_char() == '*' => name = Some("*".to_owned()),
                TokenTree::Group(group) => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    for branch in inner.split(|token| is_punct(token, ',')) {
                        self.add_import(branch, &path, is_reexport);
                    }
                    return;
                }
                _ => {}
            }
        }
        if let Some(name) = name.or_else(|| path.last().cloned()) {
            self.imports.push(Import { path, name, is_reexport });
        }
    }

    /// Adds the names and paths at the start of the tokens. Returns the tokens after them.
    fn add_code<'t>(&mut self, tokens: &'t [TokenTree]) -> &'t [TokenTree] {
        match tokens {
            [hash, TokenTree::Group(attribute), item @ ..]
                if is_punct(hash, '#') && is_test_cfg(attribute) =>
            {
                after_item(item)
            }
            // A name after `::` begins no path, such as `new` in `Vec::<u8>::new`.
            [_, _, TokenTree::Ident(name), after @ ..] if is_separator(&tokens[..2]) => {
                self.names.insert(name.to_string());
                after
            }
            [TokenTree::Ident(word), TokenTree::Ident(_), ..] if word == "use" => {
                self.add_use(&tokens[1..], false)
            }
            [TokenTree::Ident(first), after @ ..] => {
                let mut path = vec![first.to_string()];
                let mut rest = after;
                while let [_, _, TokenTree::Ident(name), after @ ..] = rest
                    && is_separator(&rest[..2])
                {
                    path.push(name.to_string());
                    rest = after;
                }
                self.names.extend(path.iter().cloned());
                if path.len() > 1 {
                    self.paths.insert(path);
                }
                rest
            }
            [TokenTree::Group(group), after @ ..] => {
                if !is_visibility(group) {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    let mut rest = &inner[..];
                    while !rest.is_empty() {
                        rest = self.add_code(rest);
                    }
                }
                after
            }
            [_, after @ ..] => after,
            [] => tokens,
        }
    }
}

fn child(path: &[String], name: &proc_macro2::Ident) -> ModulePath {
    [path, &[name.to_string()]].concat()
}

fn is_punct(token: &TokenTree, punct: char) -> bool {
    matches!(token, TokenTree::Punct(found) if found.as_char() == punct)
}

fn is_separator(tokens: &[TokenTree]) -> bool {
    tokens.iter().all(|token| is_punct(token, ':'))
}

/// `(in crate::module)`, after `pub`, is no import.
fn is_visibility(group: &Group) -> bool {
    let first = group.stream().into_iter().next();
    group.delimiter() == Delimiter::Parenthesis
        && matches!(first, Some(TokenTree::Ident(ident)) if ident == "in")
}

/// Whether an attribute, given as its brackets, is a `cfg` that holds only in tests.
fn is_test_cfg(attribute: &Group) -> bool {
    let meta: String = attribute.stream().to_string().split_whitespace().collect();
    meta == "cfg(test)" || meta.starts_with("cfg(all(test,")
}

/// The tokens after an item, which ends with its body or a semicolon.
fn after_item(tokens: &[TokenTree]) -> &[TokenTree] {
    let ends_item = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        token => is_punct(token, ';'),
    };
    let end = tokens.iter().position(ends_item);
    end.map_or(&[], |end| &tokens[end + 1..])
}
