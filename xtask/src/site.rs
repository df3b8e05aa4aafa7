//! `cargo xtask site`: the documentation as a website. Pages have the same paths as in the
//! repository, so their links need no translation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use crate::package::UNPUBLISHED;
use crate::run::{Result, read, root, step, target_dir, write};
use crate::test::documentation;
use crate::tool::tool;

const MDBOOK: &str = "mdbook@0.5.4";
/// A release build would take longer than it saves.
const MDBOOK_OPTIONS: [&str; 4] = ["--debug", "--no-default-features", "--features", "search"];

/// The pages and their order.
const SUMMARY: &str = "docs/guide/SUMMARY.md";
/// In the same folder as the summary.
const SETTINGS: [&str; 2] = ["book.toml", "site.css"];

/// A page of the website only, because the repository does not have the folder.
const API: (&str, &str) = (
    "api.md",
    "# API\n\n\
     - [dq](api/dq/index.html): for applications\n\
     - [dq_testkit](api/dq_testkit/index.html): for their tests\n\
     - [dq_web](api/dq_web/index.html): dashboard and HTTP API as a router\n\
     - [dq_metrics](api/dq_metrics/index.html): metrics of runners\n\
     - [dq_cron](api/dq_cron/index.html): times of recurring jobs\n\
     - [dq_core](api/dq_core/index.html): for authors of stores\n",
);

pub(crate) fn site() -> Result {
    let (book, site) = (target_dir().join("xtask/book"), target_dir().join("site"));
    let api = target_dir().join("doc");
    // The folder of the API may have pages of crates that are not published.
    for dir in [&book, &site, &api] {
        if dir.exists() {
            fs::remove_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        }
    }
    write_book(&book)?;
    let mut mdbook = tool(MDBOOK, &MDBOOK_OPTIONS)?;
    step("book", mdbook.arg("build").arg(&book).arg("--dest-dir").arg(&site))?;
    let mut pages = BTreeMap::new();
    for file in files_below(&site)?.iter().filter(|file| file.ends_with(".html")) {
        pages.insert(file.clone(), read(&site.join(file))?);
    }
    documentation(&UNPUBLISHED)?;
    for file in files_below(&api)? {
        copy(&api.join(&file), &site.join("api").join(&file))?;
    }
    let broken = broken_links(&pages, |file| site.join(file).is_file());
    if !broken.is_empty() {
        let broken: Vec<String> = broken.into_iter().collect();
        return Err(format!("links that lead nowhere:\n  {}", broken.join("\n  ")));
    }
    println!("site: {} pages, {}", pages.len(), site.join("index.html").display());
    Ok(())
}

/// Writes the sources of a book: the summary's pages, with images, programs and other files to
/// which they lead.
fn write_book(book: &Path) -> Result {
    let mut pages = BTreeSet::new();
    let mut summary = map_links(&read(&root().join(SUMMARY))?, |title, link| {
        let page = resolve(SUMMARY, link);
        let entry = format!("[{title}]({page})");
        pages.insert(page);
        entry
    });
    summary += &format!("- [API]({})\n", API.0);
    for page in files_below(&root().join("docs"))?.iter().map(|file| format!("docs/{file}")) {
        if page.ends_with(".md") && page != SUMMARY && !pages.contains(&page) {
            return Err(format!("{SUMMARY} does not list {page}"));
        }
    }
    for file in SETTINGS {
        copy(&root().join(SUMMARY).with_file_name(file), &book.join(file))?;
    }
    let sources = book.join("src");
    write(&sources.join("SUMMARY.md"), &summary)?;
    write(&sources.join(API.0), API.1)?;
    let mut files = BTreeSet::new();
    for page in &pages {
        let text = map_links(&read(&root().join(page))?, |text, link| {
            let file = resolve(page, link.split('#').next().unwrap_or_default());
            let path = root().join(&file);
            if !pages.contains(&file) && (path.is_dir() || file.ends_with(".md") && path.exists()) {
                return name_file(text, &file);
            }
            files.extend((!pages.contains(&file) && path.is_file()).then_some(file));
            format!("[{text}]({link})")
        });
        write(&sources.join(page), &text)?;
    }
    files.iter().try_for_each(|file| copy(&root().join(file), &sources.join(file)))
}

/// In place of a link to a folder, or to a page that is not on the website. The repository has no
/// public address yet.
fn name_file(text: &str, file: &str) -> String {
    let (name, path) = (text.trim_matches('`'), Path::new(file));
    if file == SUMMARY {
        text.to_owned()
    } else if path.ends_with(name) {
        format!("`{file}`")
    } else {
        format!("{text} (`{file}`)")
    }
}

/// Replaces Markdown's links, each given by its text and its target.
fn map_links(markdown: &str, mut map: impl FnMut(&str, &str) -> String) -> String {
    let mut mapped = String::new();
    let mut rest = markdown;
    while let Some((before, link)) = rest.split_once("](")
        && let (Some((before, text)), Some((target, after))) =
            (before.rsplit_once('['), link.split_once(')'))
    {
        mapped += before;
        mapped += &map(text, target);
        rest = after;
    }
    mapped + rest
}

/// The relative links of HTML pages that lead to no file, or to no element of a page. Absolute
/// paths lead nowhere, because the website may be in a folder. (`tests/docs` checks links as the
/// forge follows them.)
fn broken_links(
    pages: &BTreeMap<String, String>,
    is_file: impl Fn(&str) -> bool,
) -> BTreeSet<String> {
    let mut broken = BTreeSet::new();
    for (page, html) in pages {
        for link in attributes(html, "href").chain(attributes(html, "src")) {
            if link.contains("://") || link.starts_with("mailto:") || link.starts_with("data:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = resolve(page, path.split('?').next().unwrap_or_default());
            let leads_to_id = |html: &String| attributes(html, "id").any(|id| id == anchor);
            let leads_somewhere = !link.starts_with('/')
                && is_file(&file)
                && (anchor.is_empty() || pages.get(&file).is_none_or(leads_to_id));
            if !leads_somewhere {
                broken.insert(format!("{page}: {link}"));
            }
        }
    }
    broken
}

/// The values of an attribute in HTML that another program has written.
fn attributes<'a>(html: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!(" {name}=\"");
    let values: Vec<&str> = html.split(&begin).skip(1).collect();
    values.into_iter().filter_map(|rest| Some(rest.split_once('"')?.0))
}

/// The file to which a link of another file leads. Both have paths from the same folder.
fn resolve(from: &str, link: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    if !link.is_empty() {
        parts.pop();
    }
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The paths of all files in a folder and in those below it, from the folder on.
fn files_below(folder: &Path) -> Result<Vec<String>> {
    let failed = |error: io::Error| format!("{}: {error}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        match entry.file_type().map_err(failed)?.is_dir() {
            true => {
                let below = files_below(&entry.path())?;
                files.extend(below.iter().map(|file| format!("{name}/{file}")));
            }
            false => files.push(name),
        }
    }
    Ok(files)
}

/// Copies a file, and makes its folder.
fn copy(from: &Path, to: &Path) -> Result {
    fs::create_dir_all(to.parent().unwrap_or(to))
        .and_then(|()| fs::copy(from, to))
        .map_err(|error| format!("{} cannot be copied: {error}", from.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_links_and_anchors_are_found() {
        let good = r##"<h1 id="top">A</h1> <a href="#top">1</a> <a href="https://x.example/">2</a>
            <a href="guide/b.html#part">3</a> <img src="guide/plot.svg">"##;
        let bad = r##"<h2 id="part">B</h2> <a href="../a.html#top">1</a> <a href="#none">2</a>
            <a href="../a.html#part">3</a> <a href="a.html">4</a> <a href="/a.html">5</a>"##;
        let pages = [("a.html", good), ("guide/b.html", bad)];
        let pages = pages.map(|(page, html)| (page.to_owned(), html.to_owned())).into();
        let is_file = |file: &str| ["a.html", "guide/b.html", "guide/plot.svg"].contains(&file);
        let broken: Vec<String> = broken_links(&pages, is_file).into_iter().collect();
        let expected = ["#none", "../a.html#part", "/a.html", "a.html"];
        let mut expected = expected.map(|link| format!("guide/b.html: {link}"));
        expected.sort();
        assert_eq!(broken, expected);
    }

    #[test]
    fn links_are_mapped_and_the_rest_stays() {
        let page = "See [`a.rs`](../a.rs) and ![plot](p.svg), [x] and `v[1]`.\n";
        let mapped = map_links(page, |text, link| match link {
            "../a.rs" => name_file(text, "examples/a.rs"),
            _ => format!("[{text}]({link})"),
        });
        assert_eq!(mapped, "See `examples/a.rs` and ![plot](p.svg), [x] and `v[1]`.\n");
        assert_eq!(name_file("Deploying", "deploy/x.yaml"), "Deploying (`deploy/x.yaml`)");
    }
}
