//! The code and configuration shown in README and guide.
//!
//! Each page with Rust code has a file here, which is compiled and tested. Some pages share one.
//! Every `rust` block must be part of a file or of an example in `examples/transactions`, apart
//! from comments and white space. Every `toml` block with a `[backend]` must be a valid
//! configuration.

// Pages often show only part of a program.
#![allow(dead_code, unreachable_pub)]

mod configuration;
mod dashboard;
mod forwarding;
mod getting_started;
mod handlers;
mod ingress;
mod limits;
mod metrics;
mod migrating;
mod operating;
mod policies;
mod readme;
mod recurring;
mod redis;
mod redisson;
mod scheduling;
mod sqlite;
mod testing;
mod writing_a_backend;

use std::path::{Path, PathBuf};

use dq::config::Config;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Reads all files in a folder whose names end with `extension`.
fn files(folder: &Path, extension: &str) -> Vec<(PathBuf, String)> {
    let paths = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.unwrap().path());
    let paths = paths.filter(|path| path.extension().is_some_and(|found| found == extension));
    paths.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// README in each language and the guide.
fn pages() -> Vec<(PathBuf, String)> {
    let mut pages = files(&root().join("docs/guide"), "md");
    let is_readme = |path: &Path| path.file_name().unwrap().to_string_lossy().starts_with("README");
    pages.extend(files(&root(), "md").into_iter().filter(|(path, _)| is_readme(path)));
    assert!(pages.len() > 20, "the pages are found");
    pages
}

/// A page's code blocks in one language, unchanged. A block in a list item keeps its indentation.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let mut blocks = Vec::new();
    let mut rest = page;
    while let Some((_, block)) = rest.split_once(&fence) {
        let (block, after) = block.split_once("```").expect("a code block ends");
        blocks.push(block);
        rest = after;
    }
    blocks
}

/// Removes comments and white space. A URL in a string is cut like a comment, on both sides alike.
/// Also drops trailing commas, which rustfmt adds and removes.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    let code: String = lines.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect();
    [",)", ",}", ",]"].iter().fold(code, |code, end| code.replace(end, &end[1..]))
}

#[test]
fn code_on_every_page_is_compiled_and_tested() {
    let folders = ["tests/docs", "examples/transactions/src/bin"];
    let sources = folders.map(|folder| files(&root().join(folder), "rs"));
    let sources: Vec<String> = sources.iter().flatten().map(|(_, source)| code(source)).collect();
    for (path, page) in pages() {
        for block in blocks(&page, "rust") {
            let is_tested = sources.iter().any(|source| source.contains(&code(block)));
            assert!(is_tested, "{}: in no file:\n{block}", path.display());
        }
    }
}

#[test]
fn configuration_on_every_page_is_valid() {
    for (path, page) in pages() {
        // As shown, and with commented-out settings enabled.
        for block in blocks(&page, "toml").into_iter().filter(|block| block.contains("[backend]")) {
            let block = block.replace("${DATA_DIR}", "/var/lib");
            for variant in [block.clone(), block.replace("\n# ", "\n")] {
                if let Err(error) = Config::from_toml(&variant) {
                    panic!("{}: {error}\n{variant}", path.display());
                }
            }
        }
    }
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let is_kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
    let kept: String = heading.trim_start_matches(['#', ' ']).chars().filter(is_kept).collect();
    kept.to_lowercase().replace(' ', "-")
}

#[test]
fn links_lead_to_files_and_headings() {
    for (path, page) in pages() {
        for link in page.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)) {
            if link.starts_with("http") {
                continue;
            }
            let place = format!("{} links to {link}", path.display());
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { path.with_file_name(file) };
            assert!(target.exists(), "{place}");
            if !heading.is_empty() {
                let text = std::fs::read_to_string(target).expect("a page");
                // Every second part is a code block, in which # begins a comment.
                let parts = text.split("```").step_by(2);
                let mut headings = parts.flat_map(str::lines).filter(|line| line.starts_with('#'));
                assert!(headings.any(|line| anchor(line) == heading), "{place}");
            }
        }
    }
}
