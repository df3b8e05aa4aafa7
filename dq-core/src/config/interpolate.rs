//! Replaces `${NAME}` and `${file:PATH}` in configuration strings.

use super::problem::Problem;

/// Replaces each `${…}` by a variable's value or a file's contents, and `$${` by `${`.
pub(super) fn interpolate(text: &str) -> Result<String, Problem> {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            result.push_str(before);
            result.push_str("${");
            rest = after;
            continue;
        }
        result.push_str(before);
        // The text may be a password, so the error omits it.
        let Some((name, tail)) = after.split_once('}') else {
            return Err(Problem::new("a `${` has no `}`")
                .remedy("write ${NAME} or ${file:PATH}, and $${ for a plain ${"));
        };
        result.push_str(&match name.strip_prefix("file:") {
            Some(path) => file(path)?,
            None => variable(name)?,
        });
        rest = tail;
    }
    result.push_str(rest);
    Ok(result)
}

/// Reads a file, without trailing newlines.
fn file(path: &str) -> Result<String, Problem> {
    let contents = std::fs::read_to_string(path).map_err(|error| {
        Problem::new(format!("the file {path:?} cannot be read: {error}"))
            .remedy("check the path and its permissions")
    })?;
    Ok(contents.trim_end_matches(['\n', '\r']).to_owned())
}

fn variable(name: &str) -> Result<String, Problem> {
    use std::env::VarError;
    std::env::var(name).map_err(|error| {
        // `VarError`'s text contains a non-Unicode value.
        let what = match error {
            VarError::NotPresent => "is not set",
            VarError::NotUnicode(_) => "is not Unicode",
        };
        Problem::new(format!("the environment variable {name:?} {what}"))
            .remedy("set it, or write $${ for a plain ${")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_files_and_variables_are_not_interpolated_again() {
        let path =
            std::env::temp_dir().join(format!("dq-secret-interpolate-{}", std::process::id()));
        std::fs::write(&path, "hunter2 ${HOME}\r\n").unwrap();
        let text = interpolate(&format!("<${{file:{}}}>", path.display()));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text.unwrap(), "<hunter2 ${HOME}>", "contents are not interpolated again");
        let variable = std::env::var("PATH").unwrap();
        assert_eq!(interpolate("${PATH}:${PATH}").unwrap(), format!("{variable}:{variable}"));
    }

    #[test]
    fn two_dollars_escape_a_reference() {
        for (text, result) in [("$${a}$${b", "${a}${b"), ("$5 $$ {x} $", "$5 $$ {x} $")] {
            assert_eq!(interpolate(text).unwrap(), result);
        }
    }

    #[test]
    fn a_missing_reference_is_named_and_the_rest_of_the_text_is_not() {
        for (text, needle) in [
            ("hunter2${DQ_TEST_NOT_SET}", "\"DQ_TEST_NOT_SET\" is not set"),
            ("hunter2${file:/does/not/exist}", "/does/not/exist"),
            ("hunt${er2", "write ${NAME}"),
        ] {
            let Problem { what, remedy } = interpolate(text).unwrap_err();
            let error = format!("{what} ({remedy})");
            assert!(error.contains(needle) && !error.contains("er2"), "{error}");
        }
    }
}
