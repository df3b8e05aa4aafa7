//! Texts of callers for the audit and its log lines, which no caller can fill, forge a line of, or use
//! to control a terminal.

/// The beginning of a text, with U+FFFD in place of each control character.
pub(crate) fn plain(text: &str, max_chars: usize) -> String {
    let plain = |character: char| if character.is_control() { '\u{fffd}' } else { character };
    text.chars().take(max_chars).map(plain).collect()
}
