//! The code in both READMEs compiles and does what they say: the files beside this one hold it,
//! after a line of dashes, and are compared with what the READMEs show, comments aside.

#[allow(dead_code, unreachable_pub)]
mod first;
#[allow(dead_code, unreachable_pub)]
mod handler;
mod testing;

const SNIPPETS: [&str; 3] =
    [include_str!("first.rs"), include_str!("handler.rs"), include_str!("testing.rs")];

/// What is left without comments and white space. A URL in a string is cut like a comment, on both
/// sides alike.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    lines.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect()
}

#[test]
fn the_readmes_show_the_code_that_is_tested() {
    for readme in [include_str!("../../README.md"), include_str!("../../README.zh-CN.md")] {
        let blocks: Vec<_> = readme
            .split("```rust\n")
            .skip(1)
            .map(|block| block.split_once("```").expect("a block ends").0)
            .collect();
        assert_eq!(blocks.len(), SNIPPETS.len());
        for (block, snippet) in blocks.iter().zip(SNIPPETS) {
            let (_, snippet) = snippet.split_once("// ---\n").expect("a line of dashes");
            assert_eq!(code(block), code(snippet));
        }
    }
}
