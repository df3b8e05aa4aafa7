//! JSON that keeps its numbers, field order and duplicate names.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// A JSON text as written, except for the space between tokens.
///
/// Parsing to a value would round large numbers, sort names and drop duplicate names.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    /// Parses a text; `None` if it is not JSON or has more than 127 nesting levels.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        // This parser limits the depth; the `RawValue` parser does not.
        serde_json::from_slice::<Value>(bytes).ok()?;
        let text = layout(std::str::from_utf8(bytes).ok()?, false);
        RawValue::from_string(text).ok().map(Self)
    }

    /// Returns the text on one line.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Returns the text indented, one line per value.
    #[must_use]
    pub fn pretty(&self) -> String {
        layout(self.as_str(), true)
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for RawJson {}

/// Rewrites the space between tokens of valid JSON.
fn layout(json: &str, pretty: bool) -> String {
    let mut text = String::with_capacity(json.len());
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    let mut characters = json.chars().peekable();
    let line = |text: &mut String, depth: usize| {
        if pretty {
            text.push('\n');
            text.extend(std::iter::repeat_n("  ", depth));
        }
    };
    while let Some(character) = characters.next() {
        if in_string {
            in_string = is_escaped || character != '"';
            is_escaped = !is_escaped && character == '\\';
            text.push(character);
            continue;
        }
        match character {
            ' ' | '\t' | '\r' | '\n' => {}
            '{' | '[' => {
                text.push(character);
                while characters.next_if(|next| " \t\r\n".contains(*next)).is_some() {}
                match characters.next_if(|next| "}]".contains(*next)) {
                    Some(end) => text.push(end),
                    None => {
                        depth += 1;
                        line(&mut text, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut text, depth);
                text.push(character);
            }
            ',' => {
                text.push(',');
                line(&mut text, depth);
            }
            ':' => text.push_str(if pretty { ": " } else { ":" }),
            other => {
                in_string = other == '"';
                text.push(other);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_the_space_between_tokens_changes() {
        let written = " { \"b\" : 123456789012345678901 , \"a\" : [ 1.50 , { } , [\n] ] ,\
            \"b\":\" { , : \\\" \\\\\", \"\u{e9}\": null}\n";
        let json = RawJson::parse(written.as_bytes()).unwrap();
        let one_line = "{\"b\":123456789012345678901,\"a\":[1.50,{},[]],\
            \"b\":\" { , : \\\" \\\\\",\"\u{e9}\":null}";
        assert_eq!(json.as_str(), one_line);
        let pretty = "{\n  \"b\": 123456789012345678901,\n  \"a\": [\n    1.50,\n    {},\n    []\n  ],\n  \
            \"b\": \" { , : \\\" \\\\\",\n  \"\u{e9}\": null\n}";
        assert_eq!(json.pretty(), pretty);
        let sent = serde_json::to_string(&json).unwrap();
        assert_eq!(sent, one_line);
        assert_eq!(serde_json::from_str::<RawJson>(&sent).unwrap(), json);
    }

    #[test]
    fn values_look_as_other_tools_print_them() {
        for value in ["1", "\"x\"", "[]", "{}", "[1,[2,{\"a\":[{}]}]]", "{\"a\":{\"b\":true}}"] {
            let parsed: Value = serde_json::from_str(value).unwrap();
            let json = RawJson::parse(value.as_bytes()).unwrap();
            assert_eq!(json.pretty(), serde_json::to_string_pretty(&parsed).unwrap());
        }
    }

    #[test]
    fn what_is_no_json_or_too_deep_is_refused() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        for text in ["", "{", "{a:1}", "1 2", "\u{1}", deep.as_str()] {
            assert!(RawJson::parse(text.as_bytes()).is_none(), "{text:?}");
        }
        assert!(RawJson::parse(b"\"\xff\"").is_none());
    }
}
