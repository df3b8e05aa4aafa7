//! The options of `cargo xtask faults` and `cargo xtask soak`.

use std::time::Duration;

use crate::run::Result;

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) store: String,
    pub(crate) seed: Option<u64>,
    pub(crate) length: Option<Duration>,
    pub(crate) defect: Option<String>,
}

/// Parses `--backend X [--seed N] [--minutes N | --seconds N] [--defect NAME]`.
pub(crate) fn parse(
    arguments: &[&str],
    stores: &[&'static str],
    defects: &[&'static str],
) -> Result<Options> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is not a number"));
    let mut options = Options { store: String::new(), seed: None, length: None, defect: None };
    for pair in arguments.chunks(2) {
        match *pair {
            ["--backend", store] => options.store = store.to_owned(),
            ["--seed", seed] => options.seed = Some(number(seed)?),
            ["--minutes", length] => {
                options.length = Some(Duration::from_secs(number(length)? * 60));
            }
            ["--seconds", length] => options.length = Some(Duration::from_secs(number(length)?)),
            ["--defect", defect] => options.defect = Some(defect.to_owned()),
            _ => return Err(format!("{} is unknown or has no value", pair[0])),
        }
    }
    if !stores.contains(&&*options.store) {
        return Err(format!("--backend is one of {}", stores.join(", ")));
    }
    if options.defect.as_deref().is_some_and(|defect| !defects.contains(&defect)) {
        return Err(format!("--defect is one of {}", defects.join(", ")));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_make_no_sense_are_refused() {
        let parse = |arguments: &[&str]| parse(arguments, &["redis"], &["loses-jobs"]);
        for arguments in [
            &["--backend", "mysql"][..],
            &["--backend"],
            &["--seed", "1"],
            &["--backend", "redis", "--seed", "x"],
            &["--backend", "redis", "--defect", "none"],
        ] {
            assert!(parse(arguments).is_err(), "{arguments:?}");
        }
        let all = ["--backend", "redis", "--seed", "7", "--minutes", "2", "--defect", "loses-jobs"];
        assert_eq!(parse(&all).unwrap().length, Some(Duration::from_secs(120)));
    }
}
