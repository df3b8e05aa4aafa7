//! `cargo xtask licences`: checks the licences of all dependencies against `deny.toml`. `cargo deny
//! check` reads that file too, but this check needs no cargo-deny.

use std::collections::{BTreeMap, BTreeSet};

use crate::run::{Result, cargo, output, read, root};

pub(crate) fn licences() -> Result {
    let text = read(&root().join("deny.toml"))?;
    let allowed = allowed(&text)?;
    let tree = ["tree", "--workspace", "--all-features", "--target", "all", "--prefix", "none"];
    let tree = output("cargo tree", cargo(tree).args(["--format", "{p}\t{l}"]))?;

    let mut packages = BTreeMap::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let (package, licence) = line.split_once('\t').unwrap_or((line, ""));
        // `cargo tree` marks packages it has already listed.
        packages.insert(package, licence.trim_end_matches(" (*)"));
    }
    let refused: Vec<String> = packages
        .iter()
        .filter(|(_, licence)| !is_allowed(licence, &allowed))
        .map(|(package, licence)| format!("{package}: {licence:?}"))
        .collect();
    if !refused.is_empty() {
        return Err(format!("not allowed by deny.toml:\n  {}", refused.join("\n  ")));
    }
    println!("licences: {} packages, all allowed by deny.toml", packages.len());
    Ok(())
}

fn allowed(deny: &str) -> Result<BTreeSet<&str>> {
    let mut lines = deny.lines().map(str::trim);
    lines.find(|line| *line == "allow = [").ok_or("deny.toml has no line `allow = [`")?;
    let list = lines.take_while(|line| *line != "]");
    let entries = list.filter(|line| !line.starts_with('#'));
    Ok(entries.filter_map(|line| line.split('"').nth(1)).collect())
}

/// Evaluates an expression such as `(MIT OR Apache-2.0) AND Unicode-3.0`. A slash is an old form of
/// `OR`. Reads `OR` before `AND`, whatever the parentheses: that allows fewer expressions, never
/// more.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let expression = expression.replace(['(', ')'], "").replace('/', " OR ");
    expression
        .split(" AND ")
        .all(|choice| choice.split(" OR ").any(|licence| allowed.contains(licence.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allow_list_is_parsed() {
        let deny = "[licenses]\nallow = [\n    \"MIT\", # ours\n    # \"GPL-3.0\",\n    \"Apache-2.0\",\n]\nx = [\"Y\"]\n";
        assert_eq!(allowed(deny), Ok(BTreeSet::from(["MIT", "Apache-2.0"])));
        assert!(allowed("[licenses]\n").is_err());
    }

    #[test]
    fn licence_expressions_are_evaluated() {
        let allowed = BTreeSet::from(["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"]);
        let met = ["MIT", "GPL-3.0 OR MIT", "MIT/X", "(MIT OR Apache-2.0) AND Unicode-3.0"];
        for expression in met.into_iter().chain(["Apache-2.0 WITH LLVM-exception OR GPL-3.0"]) {
            assert!(is_allowed(expression, &allowed), "{expression}");
        }
        for expression in ["", "GPL-3.0", "MIT AND GPL-3.0", "GPL-3.0 AND (MIT OR X)", "MIT MIT"] {
            assert!(!is_allowed(expression, &allowed), "{expression}");
        }
    }
}
