//! `${NAME}` and `${file:PATH}` in the texts of a file.

use super::fault::Fault;

/// The text with variables and files in the place of `${…}`, and `${` in the place of `$${`.
pub(super) fn interpolated(text: &str) -> Result<String, Fault> {
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
        // The text may be a password, so the error does not repeat it.
        let Some((name, tail)) = after.split_once('}') else {
            return Err(Fault::new("a `${` has no `}`")
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

fn file(path: &str) -> Result<String, Fault> {
    let contents = std::fs::read_to_string(path).map_err(|error| {
        Fault::new(format!("the file {path:?} cannot be read: {error}"))
            .remedy("check the path and its permissions")
    })?;
    Ok(contents.trim_end_matches(['\n', '\r']).to_owned())
}

fn variable(name: &str) -> Result<String, Fault> {
    use std::env::VarError;
    std::env::var(name).map_err(|error| {
        // `VarError` itself would show the value that is not Unicode.
        let what = match error {
            VarError::NotPresent => "is not set",
            VarError::NotUnicode(_) => "is not Unicode",
        };
        Fault::new(format!("the environment variable {name:?} {what}"))
            .remedy("set it, or write $${ for a plain ${")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_variables_take_their_places() {
        let path = std::env::temp_dir().join(format!("dq-secret-{}", std::process::id()));
        std::fs::write(&path, "hunter2 ${HOME}\r\n").unwrap();
        let text = interpolated(&format!("<${{file:{}}}>", path.display()));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text.unwrap(), "<hunter2 ${HOME}>", "what is put in is not looked at again");
        let home = std::env::var("PATH").unwrap();
        assert_eq!(interpolated("${PATH}:${PATH}").unwrap(), format!("{home}:{home}"));
    }

    #[test]
    fn two_dollars_stand_for_one() {
        for (text, result) in [
            ("a$${b}", "a${b}"),
            ("$${", "${"),
            ("$5 $$ {x} $", "$5 $$ {x} $"),
            ("$${a}$${b}", "${a}${b}"),
        ] {
            assert_eq!(interpolated(text).unwrap(), result);
        }
    }

    #[test]
    fn what_is_missing_is_named_and_the_rest_of_the_text_is_not() {
        for (text, needle) in [
            ("hunter2${DQ_TEST_NOT_SET}", "\"DQ_TEST_NOT_SET\" is not set"),
            ("hunter2${file:/does/not/exist}", "/does/not/exist"),
            ("hunt${er2", "write ${NAME}"),
        ] {
            let Fault { what, remedy } = interpolated(text).unwrap_err();
            let error = format!("{what} ({remedy})");
            assert!(error.contains(needle) && !error.contains("er2"), "{error}");
        }
    }
}
