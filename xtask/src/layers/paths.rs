//! Finds paths in code. Works on tokens rather than the syntax tree, so it also sees macro
//! arguments.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

#[derive(Debug, Default)]
pub(super) struct PathsInCode {
    /// All paths with two or more names.
    pub(super) paths: BTreeSet<Vec<String>>,
    /// All names, also those in paths.
    pub(super) names: BTreeSet<String>,
}

impl PathsInCode {
    /// Adds paths and names, without test-only code.
    pub(super) fn scan(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = &tokens[..];
        while let Some((token, after)) = rest.split_first() {
            rest = match token {
                _ if is_test_attribute(rest) => after_item(&rest[2..]),
                // A name after `::` begins no path, unless it is a crate's name.
                _ if is_separator(rest) && is_any_ident(rest.get(2)) => &rest[3..],
                TokenTree::Ident(_) => self.scan_path(rest, &[]),
                TokenTree::Group(group) => {
                    if !is_visibility(group) {
                        self.scan(group.stream());
                    }
                    after
                }
                _ => after,
            }
        }
    }

    /// Adds the path at the start of the tokens, including `use` groups. `base` is the path before a
    /// group. Returns the tokens after the path.
    fn scan_path<'t>(&mut self, tokens: &'t [TokenTree], base: &[String]) -> &'t [TokenTree] {
        let mut path = base.to_vec();
        let mut rest = tokens;
        while let Some((TokenTree::Ident(ident), after)) = rest.split_first() {
            self.names.insert(ident.to_string());
            path.push(ident.to_string());
            rest = after;
            if !is_separator(rest) {
                break;
            }
            match rest.get(2) {
                Some(TokenTree::Ident(_)) => rest = &rest[2..],
                Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    for branch in inner.split(|token| is_punct(token, ',')) {
                        self.scan_path(branch, &path);
                    }
                    return &rest[3..];
                }
                _ => break,
            }
        }
        if path.len() > 1 {
            self.paths.insert(path);
        }
        rest
    }
}

/// The tokens after an item, which ends with its body or a semicolon.
fn after_item(tokens: &[TokenTree]) -> &[TokenTree] {
    let end = tokens.iter().position(ends_item);
    end.map_or(&[], |end| &tokens[end + 1..])
}

fn is_any_ident(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Ident(_)))
}

/// `(in crate::module)`, after `pub`, is no import.
fn is_visibility(group: &Group) -> bool {
    let first = group.stream().into_iter().next();
    group.delimiter() == Delimiter::Parenthesis
        && matches!(first, Some(TokenTree::Ident(ident)) if ident == "in")
}

fn is_punct(token: &TokenTree, punct: char) -> bool {
    matches!(token, TokenTree::Punct(found) if found.as_char() == punct)
}

fn is_separator(tokens: &[TokenTree]) -> bool {
    tokens.len() >= 2 && is_punct(&tokens[0], ':') && is_punct(&tokens[1], ':')
}

fn ends_item(token: &TokenTree) -> bool {
    is_punct(token, ';')
        || matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

fn is_test_attribute(tokens: &[TokenTree]) -> bool {
    match tokens {
        [hash, TokenTree::Group(group), ..] if is_punct(hash, '#') => {
            is_test_cfg(&group.stream().to_string())
        }
        _ => false,
    }
}

/// Whether the attribute text, without `#[…]`, is a `cfg` that holds only in tests.
pub(super) fn is_test_cfg(meta: &str) -> bool {
    let meta: String = meta.split_whitespace().collect();
    meta == "cfg(test)" || meta.starts_with("cfg(all(test,")
}
