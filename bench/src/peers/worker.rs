//! A process that runs jobs, and the lines it prints.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::peer::Peer;
use super::server::Server;
use crate::measure::Result;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) number: usize,
    /// Start minus due time in microseconds; negative if early.
    pub(crate) lateness: i64,
    /// Microseconds since 1970.
    pub(crate) started: i64,
}

/// A process that runs jobs. Dropping it kills the process.
pub(crate) struct Worker {
    process: Child,
    runs: Receiver<Run>,
    _server: Option<Server>,
}

impl Worker {
    pub(crate) fn start(peer: &Peer, address: &str, millis: u64) -> Result<Self> {
        let (mut command, server) = peer.work(address)?;
        command.arg(millis.to_string()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        let output = process.stdout.take().ok_or("its output is not a pipe")?;
        let (sender, runs) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(std::io::Result::ok) {
                // Libraries print other lines too.
                let Some(run) = parse(&String::from_utf8_lossy(&line)) else { continue };
                if sender.send(run).is_err() {
                    break;
                }
            }
        });
        Ok(Self { process, runs, _server: server })
    }

    /// Waits for `count` distinct job numbers or the timeout, then returns all runs.
    pub(crate) fn runs(&self, count: usize, within: Duration) -> Vec<Run> {
        let (deadline, mut numbers, mut runs) =
            (Instant::now() + within, BTreeSet::new(), Vec::new());
        while numbers.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.runs.recv_timeout(left) {
                Ok(run) => {
                    numbers.insert(run.number);
                    runs.push(run);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        runs
    }

    pub(crate) fn kill(mut self) -> Result<Vec<Run>> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(self.runs.iter().collect())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn parse(line: &str) -> Option<Run> {
    let mut numbers = line.split(' ').map(str::parse::<i64>);
    let (Some(Ok(number)), Some(Ok(due)), Some(Ok(started)), None) =
        (numbers.next(), numbers.next(), numbers.next(), numbers.next())
    else {
        return None;
    };
    Some(Run { number: usize::try_from(number).ok()?, lateness: started - due * 1_000, started })
}
