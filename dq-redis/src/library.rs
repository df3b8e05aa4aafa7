//! Selects the shared Lua functions for a script: Redis runs the whole text at each call, and in an
//! empty call, defining all functions took half the time.
//!
//! A *library* is a list of texts with comments and *definitions*. A definition begins with a line
//! `local …` and ends before the next definition or comment at the beginning of a line. It has no
//! side effects, so a script needs only the definitions it names.

use std::collections::HashSet;

struct Definition<'a> {
    names: Vec<&'a str>,
    text: &'a str,
}

/// The definitions that `body` needs, directly or through others, in library order. A word in a
/// comment or a string counts as a name: this may select too much, never too little.
pub(crate) fn select<'a>(library: &[&'a str], body: &'a str) -> Vec<&'a str> {
    let mut used: HashSet<&str> = words(body).collect();
    let mut selected = Vec::new();
    // Backwards, because a definition only needs earlier ones. If several define the same name, as
    // in redisson/waiting.lua, all are kept: those in between refer to the earlier one.
    for definition in library.iter().flat_map(|text| definitions(text)).rev() {
        if definition.names.iter().any(|name| used.contains(name)) {
            used.extend(words(definition.text));
            selected.push(definition.text);
        }
    }
    selected.reverse();
    selected
}

fn definitions(text: &str) -> Vec<Definition<'_>> {
    let mut definitions = Vec::new();
    let mut start = None;
    let mut line_start = 0;
    for line in text.split_inclusive('\n') {
        let begins = line.starts_with("local ");
        if begins || line.starts_with("--") {
            let ended = start.take().map(|start| Definition::new(&text[start..line_start]));
            definitions.extend(ended);
        }
        if begins {
            start = Some(line_start);
        }
        line_start += line.len();
    }
    definitions.extend(start.map(|start| Definition::new(&text[start..])));
    definitions
}

impl<'a> Definition<'a> {
    fn new(text: &'a str) -> Self {
        let names = match text.strip_prefix("local function ") {
            Some(function) => words(function).take(1).collect(),
            None => {
                let names = text["local".len()..].split(['=', '\n']).next();
                words(names.unwrap_or_default()).collect()
            }
        };
        Self { names, text }
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}
