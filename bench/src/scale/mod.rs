//! `dq-bench scale`: calls, lateness and memory with a growing number of pending jobs.

mod measure;
mod plot;
mod report;
mod store;

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use crate::conditions::Conditions;
use crate::plan::{Result, progress};
use crate::{rabbit, redis};

use measure::Sizes;
use report::Report;
use store::{Kind, Store};

/// The smallest step, unless the caller asks for fewer jobs.
const LEAST: usize = 100;

#[derive(Debug)]
struct Options {
    kind: Kind,
    pending: usize,
    queues: usize,
    dir: PathBuf,
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Options> {
    use lexopt::prelude::{Long, ValueExt};
    let mut parser = lexopt::Parser::from_args(arguments);
    let (mut kind, mut pending, mut dir) = (None, None, PathBuf::from("target/scale"));
    let mut queues = 1;
    while let Some(argument) = parser.next()? {
        match argument {
            Long("backend") => kind = Some(Kind::parse(&parser.value()?.string()?)?),
            Long("pending") => pending = Some(parser.value()?.parse::<usize>()?),
            Long("queues") => queues = parser.value()?.parse::<usize>()?,
            Long("dir") => dir = parser.value()?.into(),
            other => return Err(other.unexpected().into()),
        }
    }
    let kind = kind.ok_or("scale: --backend is missing")?;
    let pending = pending.filter(|pending| *pending > 0);
    let pending = pending.ok_or("scale: --pending is missing, or is 0")?;
    if queues == 0 {
        return Err("scale: --queues is 0".into());
    }
    Ok(Options { kind, pending, queues, dir })
}

/// The steps: `pending`, and a tenth, a hundredth and a thousandth.
fn steps(pending: usize) -> Vec<usize> {
    let mut steps: Vec<usize> =
        [1_000, 100, 10].iter().map(|part| pending / part).filter(|at| *at >= LEAST).collect();
    steps.push(pending);
    steps
}

pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> Result<()> {
    let Options { kind, pending, queues, dir } = parse(arguments)?;
    fs::create_dir_all(&dir)?;
    let (redis, rabbit) = match kind {
        Kind::Sqlite => (None, None),
        Kind::Redis => (Some(redis::version()?), None),
        Kind::RabbitMq => (None, Some(rabbit::version()?)),
    };
    // An unoptimized build only tests the program.
    let sizes = if cfg!(debug_assertions) { Sizes::SMALL } else { Sizes::FULL };
    let mut conditions = Conditions::observe(&dir, cfg!(debug_assertions), redis, rabbit);
    println!("{conditions}");
    let files = tempfile::tempdir_in(&dir)?;
    let store = Store::start(kind, files.path())?;
    let points = measure::points(&store, queues, &steps(pending), &sizes)?;
    drop(store);
    conditions.finish();
    let report = Report { store: kind.name(), queues, conditions, points };
    let mut name = format!("{}-{pending}", kind.name());
    if queues > 1 {
        name += &format!("-{queues}-queues");
    }
    let base = dir.join(name);
    fs::write(base.with_extension("json"), serde_json::to_vec_pretty(&report)?)?;
    fs::write(base.with_extension("md"), report.markdown())?;
    fs::write(base.with_extension("svg"), report.plot())?;
    println!("{}", report.markdown());
    progress(format_args!("written to {}.json, .md and .svg", base.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_powers_of_ten_below_the_last() {
        assert_eq!(steps(1_000_000), [1_000, 10_000, 100_000, 1_000_000]);
        assert_eq!(steps(5_000), [500, 5_000]);
        assert_eq!(steps(7), [7]);
    }

    #[test]
    fn arguments_that_make_no_sense_are_refused() {
        let parse = |text: &str| parse(text.split_whitespace().map(OsString::from));
        for text in [
            "",
            "--backend redis",
            "--pending 5",
            "--backend redis --pending 0",
            "--backend redis --pending x",
            "--backend mysql --pending 5",
            "--backend redis --pending 5 --queues 0",
            "--backend redis --pending 5 --jobs 6",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        let options = parse("--backend rabbitmq --pending 5").unwrap();
        assert_eq!((options.kind, options.pending, options.queues), (Kind::RabbitMq, 5, 1));
    }
}
