//! Splits many items into chunks of limited size.

/// Splits the items into chunks of at most `max_items` items and `max_bytes` bytes. A larger item
/// is a chunk of its own.
pub(crate) fn chunks<T>(
    items: impl IntoIterator<Item = T>,
    max_items: usize,
    max_bytes: u64,
    bytes_of: impl Fn(&T) -> u64,
) -> impl Iterator<Item = Vec<T>> {
    let mut items = items.into_iter().peekable();
    std::iter::from_fn(move || {
        let mut chunk = Vec::new();
        let mut bytes = 0;
        while chunk.len() < max_items
            && let Some(item) = items.peek()
        {
            bytes += bytes_of(item);
            if bytes > max_bytes && !chunk.is_empty() {
                break;
            }
            chunk.extend(items.next());
        }
        (!chunk.is_empty()).then_some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_limited_in_items_and_bytes() {
        let large = [4, 6, 1, 20, 10, 1];
        let chunks: Vec<_> = chunks(large.into_iter().chain([0; 5]), 4, 10, |it| *it).collect();
        assert_eq!(chunks, [vec![4, 6], vec![1], vec![20], vec![10], vec![1, 0, 0, 0], vec![0, 0]]);
    }
}
