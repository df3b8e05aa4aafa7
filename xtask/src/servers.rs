//! `cargo xtask servers`: installs the programs the tests need.

use std::time::Instant;

use crate::run::Result;

pub(crate) fn servers() -> Result {
    println!("── servers: Redis, RabbitMQ, a browser, nginx, promtool, Java, Python");
    let start = Instant::now();
    dq_servers::install::everything()?;
    println!("── servers: ok, {:.1} s\n", start.elapsed().as_secs_f64());
    Ok(())
}
