//! Recognizes the names of Java classes: by convention, packages come first, then a name that
//! begins with a capital.

pub(super) fn is_class_name(name: &str) -> bool {
    if let Some(element) = name.strip_prefix('[') {
        let element = element.trim_start_matches('[');
        let class = element.strip_prefix('L').and_then(|class| class.strip_suffix(';'));
        return class.is_some_and(is_class_name)
            || matches!(element, "B" | "C" | "D" | "F" | "I" | "J" | "S" | "Z");
    }
    let name = match name.split_once('<') {
        Some((name, types)) if types.ends_with('>') => name,
        _ => name,
    };
    let Some((packages, class)) = name.rsplit_once('.') else { return false };
    let identifier = |part: &str| {
        part.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '$'))
            && part.starts_with(|first: char| !first.is_numeric())
    };
    packages.split('.').all(identifier)
        && identifier(class)
        && class.starts_with(|first: char| first.is_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_names_are_distinguished_from_other_text() {
        for name in [
            "java.lang.Long",
            "java.util.Collections$UnmodifiableList",
            "java.util.EnumSet<com.example.Color>",
            "[[I",
            "[Ljava.lang.String;",
        ] {
            assert!(is_class_name(name), "{name}");
        }
        for name in ["", "Order", "www.example.com", "a..B", "1.Two", "[x", "[Lx;", "e.g. This"] {
            assert!(!is_class_name(name), "{name}");
        }
    }
}
