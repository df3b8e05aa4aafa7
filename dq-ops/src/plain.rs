//! Texts of callers as they are kept: cut, and without control characters.

/// The beginning of a text, with a sign for each control character.
pub(crate) fn plain(text: &str, max_chars: usize) -> String {
    let plain = |character: char| if character.is_control() { '\u{fffd}' } else { character };
    text.chars().take(max_chars).map(plain).collect()
}
