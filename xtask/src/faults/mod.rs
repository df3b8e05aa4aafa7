//! `cargo xtask faults`: processes share a store while processes, server and connections fail at
//! random. Then the judge checks their traces.

mod disk_postgres;
mod durable_redis;
mod fault;
mod postgres_pair;
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

use fault::DEFECTS;
use run::Run;

use crate::options;
use crate::run::Result;

pub(crate) use run::build as build_client;
pub(crate) use selection::selection;
pub(crate) use server::Server;

pub(crate) fn faults(arguments: &[&str]) -> Result {
    if arguments == ["--short"] {
        return selection();
    }
    let stores = [&Server::STORES[..], &Server::CLUSTERS].concat();
    let options = options::parse(arguments, &stores, &DEFECTS.map(|(name, _)| name))?;
    let run = Run {
        store: options.store,
        seed: options.seed.unwrap_or(1),
        length: Some(options.length.unwrap_or(Duration::from_secs(60))),
        defect: options.defect,
    };
    Server::install(&run.store)?;
    build_client()?;
    println!("── {run}");
    let report = run.execute()?;
    println!("{}", report.text);
    if report.is_violated {
        return Err(format!("{run} failed"));
    }
    println!("── {run}: ok");
    Ok(())
}
