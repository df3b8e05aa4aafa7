//! Caller texts in the audit and its log lines. They are cut and cleaned, so that no caller can
//! fill the log, forge a line or control a terminal.

/// Cuts a text and replaces its control characters by U+FFFD.
pub(crate) fn plain(text: &str, max_chars: usize) -> String {
    let plain = |character: char| if character.is_control() { '\u{fffd}' } else { character };
    text.chars().take(max_chars).map(plain).collect()
}
