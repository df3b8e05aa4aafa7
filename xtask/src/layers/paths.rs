//! Finds paths in code. Works on tokens rather than the syntax tree, so it also sees macro
//! arguments.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// All names, and all paths with two or more names.
#[derive(Debug, Default)]
pub(super) struct PathsInCode {
    pub(super) paths: BTreeSet<Vec<String>>,
    pub(super) names: BTreeSet<String>,
}

impl PathsInCode {
    /// Adds paths and names, without test-only code.
    pub(super) fn scan(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            if is_test_attribute(&tokens[at..]) {
                at += 2;
                // Skips the item, which ends with its body or a semicolon.
                while at < tokens.len() && !ends_item(&tokens[at]) {
                    at += 1;
                }
                at += 1;
                continue;
            }
            match &tokens[at] {
                // A path with a leading `::` begins with a crate name.
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

    /// Reads the path at the start of the tokens, including `use` groups. Returns the tokens
    /// consumed.
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

/// Returns true if the attribute text, without `#[…]`, is a `cfg` that holds only in tests.
pub(super) fn is_test_cfg(meta: &str) -> bool {
    let meta: String = meta.split_whitespace().collect();
    meta == "cfg(test)" || meta.starts_with("cfg(all(test,")
}
