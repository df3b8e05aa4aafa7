//! `cargo xtask release --dry-run`: checks a release and prints the commands that publish it, which
//! a person runs. The clients' packages are built and checked by `cargo xtask test`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::licences::licences;
use crate::package::{UNPUBLISHED, package, workspace_packages};
use crate::run::{Result, output, read, root, step, target_dir};
use crate::tool::tool;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Files that name the version, each with the text around it.
const NAMED_IN: [(&str, &str, &str); 6] = [
    ("clients/python/pyproject.toml", "\nversion = \"", "\"\n"),
    ("clients/typescript/package.json", "\"version\": \"", "\","),
    ("clients/java/pom.xml", "<version>", ""),
    ("clients/java/README.md", "<version>", ""),
    ("deploy/kubernetes.yaml", "/dq:", "\n"),
    ("Cargo.toml", "package = \"dq-jobs\", version = \"", "\""),
];

const CHANGELOGS: [&str; 4] = [
    "CHANGELOG.md",
    "clients/python/CHANGELOG.md",
    "clients/typescript/CHANGELOG.md",
    "clients/java/CHANGELOG.md",
];

pub(crate) fn dry_run() -> Result {
    for (file, before, after) in NAMED_IN {
        if !read(&root().join(file))?.contains(&format!("{before}{VERSION}{after}")) {
            return Err(format!("{file} does not name version {VERSION}"));
        }
    }
    let tag = format!("v{VERSION}");
    if !git(&["tag", "--list", &tag])?.is_empty() {
        return Err(format!("{tag} is released: raise the version in Cargo.toml"));
    }
    let mut to_do = Vec::new();
    for file in CHANGELOGS {
        let text = read(&root().join(file))?;
        match text.contains("\n## Unreleased\n") {
            true => {
                to_do.push(format!("{file}: rename \"Unreleased\" to \"{VERSION}\", with the date"))
            }
            false if text.contains(&format!("\n## {VERSION}")) => {}
            false => return Err(format!("{file} has no section about {VERSION}")),
        }
    }
    if read(&root().join("clients/java/pom.xml"))?.contains("-SNAPSHOT</version>") {
        to_do
            .push("clients/java: remove \"-SNAPSHOT\" from pom.xml files and README.md".to_owned());
    }
    if !git(&["status", "--porcelain"])?.is_empty() {
        return Err("there are changes that are not committed".to_owned());
    }
    licences()?;
    package()?;
    compare_with(git(&["tag", "--list", "v*", "--sort=-version:refname"])?.lines().next())?;
    list_components()?;

    println!("To do before:");
    to_do.iter().for_each(|line| println!("  {line}"));
    println!("Then, each when the one before has ended:");
    println!("  cargo xtask test\n  git tag -s {tag} -m \"dq {VERSION}\" && git push origin {tag}");
    for name in in_order()? {
        println!("  cargo publish --locked -p {name}");
    }
    println!("  (cd clients/python && ./check && python3 -m twine upload dist/*)");
    println!("  (cd clients/typescript && npm ci && npm publish)");
    println!("  (cd clients/java && mvn deploy)");
    Ok(())
}

/// Compares each crate's API with the last release.
fn compare_with(released: Option<&str>) -> Result {
    let Some(tag) = released else {
        println!("semver: nothing was released before\n");
        return Ok(());
    };
    // Its newest version, because it reads what the compiler's rustdoc writes.
    let mut compare = tool("cargo-semver-checks", &[])?;
    let arguments = ["semver-checks", "check-release", "--workspace", "--baseline-rev", tag];
    step("semver", compare.args(arguments))
}

/// Writes which crates the program `dq` is made of, as a CycloneDX document.
fn list_components() -> Result {
    let mut list = tool("cargo-cyclonedx@0.5.9", &[])?;
    list.args(["cyclonedx", "--format", "json", "--all-features"]);
    list.args(["--manifest-path", "dq-cli/Cargo.toml"]);
    step("bill of materials", &mut list)?;
    // The tool writes one beside each manifest of the workspace.
    let written = git(&["ls-files", "--others", "--exclude-standard", "*.cdx.json"])?;
    let to = target_dir().join(format!("dq-{VERSION}.cdx.json"));
    for file in written.lines().map(Path::new) {
        let of_program = file == Path::new("dq-cli/dq-cli.cdx.json");
        let file = root().join(file);
        let moved =
            if of_program { std::fs::rename(&file, &to) } else { std::fs::remove_file(&file) };
        moved.map_err(|error| format!("{}: {error}", file.display()))?;
    }
    if !to.is_file() {
        return Err("the tool wrote no document about dq-cli".to_owned());
    }
    println!("bill of materials: {}\n", to.display());
    Ok(())
}

fn git(arguments: &[&str]) -> Result<String> {
    output("git", Command::new("git").current_dir(root()).args(arguments))
}

/// The published crates. Each follows its dependencies.
fn in_order() -> Result<Vec<String>> {
    let packages = workspace_packages()?;
    let names = |items: &[Value], include: &dyn Fn(&Value) -> bool| -> Vec<String> {
        let included = items.iter().filter(|item| include(item));
        included.filter_map(|item| Some(item["name"].as_str()?.to_owned())).collect()
    };
    let is_published = |item: &Value| !UNPUBLISHED.iter().any(|name| item["name"] == *name);
    let published = names(&packages, &is_published);
    let mut waiting: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in &packages {
        let name = package["name"].as_str().unwrap_or_default().to_owned();
        let dependencies = package["dependencies"].as_array().map_or(&[][..], Vec::as_slice);
        // Tests may depend on crates that come later.
        let needed = names(dependencies, &|item| item["kind"] != "dev");
        if published.contains(&name) {
            waiting.insert(name, needed.into_iter().filter(|it| published.contains(it)).collect());
        }
    }
    let mut order = Vec::new();
    while !waiting.is_empty() {
        let ready = |needed: &[String]| needed.iter().all(|name| order.contains(name));
        let next = waiting.iter().find(|(_, needed)| ready(needed)).map(|(name, _)| name.clone());
        let name = next.ok_or("the crates depend on each other in a circle")?;
        waiting.remove(&name);
        order.push(name);
    }
    Ok(order)
}
