//! `cargo xtask faults`: processes share a store while processes, server and connections fail at
//! random. Then the judge checks their traces.

mod cluster;
mod defect;
mod dice;
mod durable_redis;
mod fault;
mod proxy;
mod redis_cluster;
mod replication;
mod run;
mod scene;
mod selection;
mod sentinel;
mod server;
mod small_disk;

use std::time::Duration;

use run::{Length, Run, Verdict};

use crate::run::Result;

pub(crate) use run::build as build_client;
pub(crate) use selection::selection;
pub(crate) use server::Server;

/// Parses `--backend X [--seed N] [--minutes M | --seconds S] [--defect NAME]`.
fn parse(arguments: &[&str]) -> Result<Run> {
    let number =
        |text: &str| text.parse::<u64>().map_err(|_| format!("faults: {text:?} is not a number"));
    let seconds = |number| Length::Time(Duration::from_secs(number));
    let mut run = Run::new("", 1, Length::Time(Duration::from_secs(60)));
    for pair in arguments.chunks(2) {
        match *pair {
            ["--backend", store] => run.store = store.to_owned(),
            ["--seed", seed] => run.seed = number(seed)?,
            ["--minutes", minutes] => run.length = seconds(number(minutes)? * 60),
            ["--seconds", length] => run.length = seconds(number(length)?),
            ["--defect", defect] => run.defect = Some(defect::by_name(defect)?),
            _ => return Err(format!("faults: {} is unknown or has no value", pair[0])),
        }
    }
    let stores = [&Server::STORES[..], &Server::CLUSTERS].concat();
    if stores.contains(&run.store.as_str()) {
        Ok(run)
    } else {
        Err(format!("faults: --backend is one of {}", stores.join(", ")))
    }
}

/// Builds the client and does one run, or CI's runs with `--short`.
pub(crate) fn faults(arguments: &[&str]) -> Result {
    if arguments == ["--short"] {
        return selection();
    }
    let run = parse(arguments)?;
    Server::install(&run.store)?;
    build_client()?;
    println!("── {run}");
    let report = run.execute()?;
    println!("{}", report.text);
    match report.verdict {
        Verdict::Kept => {
            println!("── {run}: ok");
            Ok(())
        }
        Verdict::Violated => Err(format!("{run} failed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_make_no_sense_are_refused() {
        for arguments in [
            &["--backend", "mysql"][..],
            &["--backend"],
            &["--seed", "1"],
            &["--backend", "redis", "--seed", "x"],
            &["--backend", "redis", "--defect", "none"],
        ] {
            assert!(parse(arguments).is_err(), "{arguments:?}");
        }
        let run = parse(&["--backend", "redisson", "--seed", "7", "--minutes", "2"]).unwrap();
        let length = Length::Time(Duration::from_secs(120));
        assert_eq!((&*run.store, run.seed, run.length), ("redisson", 7, length));
    }
}
