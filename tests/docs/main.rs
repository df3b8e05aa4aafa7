//! The code and configuration shown in README and guide.
//!
//! Each page with Rust code has a file here, which is compiled and tested. Some pages share one.
//! Every `rust` block on a page must be part of its file, apart from comments and white space.
//! Every `toml` block with a `[backend]` must be a valid configuration.

// Pages often show only part of a program.
#![allow(dead_code, unreachable_pub)]

mod configuration;
mod dashboard;
mod forwarding;
mod getting_started;
mod handlers;
mod ingress;
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

use std::path::Path;

use dq::config::Config;

/// Page name, page, and the source that must contain its code blocks.
const PAGES: [(&str, &str, &str); 26] = [
    ("README.md", include_str!("../../README.md"), include_str!("readme.rs")),
    ("README.zh-CN.md", include_str!("../../README.zh-CN.md"), include_str!("readme.rs")),
    page!("getting-started.md", "getting_started.rs"),
    page!("handlers.md", "handlers.rs"),
    page!("policies.md", "policies.rs"),
    page!("scheduling.md", "scheduling.rs"),
    page!("recurring.md", "recurring.rs"),
    page!("operating.md", "operating.rs"),
    page!("dashboard.md", "dashboard.rs"),
    page!("http-api.md"),
    page!("cli.md"),
    page!("securing.md", "dashboard.rs"),
    page!("metrics.md", "metrics.rs"),
    page!("forwarding.md", "forwarding.rs"),
    page!("ingress.md", "ingress.rs"),
    page!("configuration.md", "configuration.rs"),
    page!("testing.md", "testing.rs"),
    page!("reliability.md"),
    page!("backends.md"),
    page!("sqlite.md", "sqlite.rs"),
    page!("redis.md", "redis.rs"),
    page!("redisson.md", "redisson.rs"),
    page!("rabbitmq.md"),
    page!("migrating.md", "migrating.rs"),
    page!("schedulers.md"),
    page!("writing-a-backend.md", "writing_a_backend.rs"),
];

macro_rules! page {
    ($page:literal) => {
        ($page, include_str!(concat!("../../docs/guide/", $page)), "")
    };
    ($page:literal, $source:literal) => {
        ($page, include_str!(concat!("../../docs/guide/", $page)), include_str!($source))
    };
}
use page;

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
    for (name, page, source) in PAGES {
        let source = code(source);
        for block in blocks(page, "rust") {
            assert!(source.contains(&code(block)), "{name}: not in its test file:\n{block}");
        }
    }
}

#[test]
fn configuration_on_every_page_is_valid() {
    for (name, page, _) in PAGES {
        // As shown, and with commented-out settings enabled.
        for block in blocks(page, "toml").into_iter().filter(|block| block.contains("[backend]")) {
            let block = block.replace("${DATA_DIR}", "/var/lib");
            for variant in [block.clone(), block.replace("\n# ", "\n")] {
                if let Err(error) = Config::from_toml(&variant) {
                    panic!("{name}: {error}\n{variant}");
                }
            }
        }
    }
}

fn anchor(heading: &str) -> String {
    let is_kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
    heading
        .chars()
        .filter(is_kept)
        .flat_map(char::to_lowercase)
        .collect::<String>()
        .replace(' ', "-")
}

#[test]
fn links_lead_to_files_and_headings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (name, page, _) in PAGES {
        let folder = if name.starts_with("README") { "" } else { "docs/guide/" };
        for link in page.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)) {
            if link.starts_with("http") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let path = root.join(folder).join(if file.is_empty() { name } else { file });
            assert!(path.exists(), "{name} links to {link}");
            if !heading.is_empty() {
                let text = std::fs::read_to_string(path).expect("a page");
                let headings = text.lines().filter(|line| line.starts_with('#'));
                let mut anchors = headings.map(|line| anchor(line.trim_start_matches(['#', ' '])));
                assert!(anchors.any(|anchor| anchor == heading), "{name} links to {link}");
            }
        }
    }
}
