//! Inflicts a storm's faults.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use super::fault::Fault;
use super::proxy::Proxy;
use super::server::Server;
use crate::crew::{Crew, PRODUCE, Program};
use crate::run::Result;

/// A fault's duration. The longest exceed the client's lease (3 s).
const FAULT_MILLIS: Range<u64> = 100..5_000;
/// How long the client's clock keeps one error. Equals `PERIOD` in
/// `xtask/faults-client/src/clock.rs`.
const CLOCK_ERROR: Duration = Duration::from_secs(2);
/// The most bytes that a connection passes before it is cut.
const MAX_BYTES: u64 = 2_000;

#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub(super) server: &'a Server,
    /// Between the processes and the server, if the store allows one.
    pub(super) proxy: Option<Proxy>,
    pub(super) crew: Crew,
    pub(super) program: &'a Program,
}

impl Scene<'_> {
    /// Begins a fault and ends it, on a process, connection or server chosen at random.
    pub(super) fn inflict(&mut self, fault: Fault, rng: &mut SmallRng) -> Result {
        let random = rng.random_range(0..usize::from(u16::MAX));
        let process = random % self.crew.len();
        let bytes = rng.random_range(0..MAX_BYTES);
        let lasts = Duration::from_millis(rng.random_range(FAULT_MILLIS));
        match fault {
            Fault::KillProcess => {
                self.crew.kill(process);
                self.crew.start(self.program, PRODUCE)?;
            }
            Fault::WrongClock => {
                let mut wrong = self.program.clone();
                wrong.environment.push(("DQ_FAULTS_CLOCK", "jumping".to_owned()));
                self.crew.kill(process);
                let replacement = self.crew.start(&wrong, PRODUCE)?;
                self.crew.await_log(replacement);
                thread::sleep(CLOCK_ERROR + lasts);
            }
            Fault::FreezeProcess => {
                self.crew.signal(process, "STOP");
                thread::sleep(lasts);
                self.crew.signal(process, "CONT");
            }
            Fault::InterruptProcess => {
                self.crew.await_log(process);
                self.crew.signal(process, "INT");
                self.crew.stop(process);
                self.crew.start(self.program, PRODUCE)?;
            }
            Fault::PauseConnections => self.interfere("pause", "resume", lasts)?,
            Fault::PauseRequests => self.interfere("pause-requests", "resume", lasts)?,
            Fault::PauseReplies => self.interfere("pause-replies", "resume", lasts)?,
            Fault::DelayConnections => {
                let delay = Duration::from_millis(rng.random_range(FAULT_MILLIS));
                // A request and its reply each wait for the whole delay.
                let begin = format!("delay {}", delay.as_millis());
                self.interfere(&begin, "delay 0", lasts + 2 * delay)?;
            }
            Fault::ResetConnections => self.command("reset")?,
            Fault::AbandonConnections => self.command("abandon")?,
            Fault::CutRequests => self.command(&format!("cut-requests {bytes}"))?,
            Fault::CutReplies => self.command(&format!("cut-replies {bytes}"))?,
            Fault::ResetReplies => self.command(&format!("reset-replies {bytes}"))?,
            of_server => self.server.inflict(of_server, random, lasts)?,
        }
        Ok(())
    }

    fn interfere(&mut self, begin: &str, end: &str, lasts: Duration) -> Result {
        self.command(begin)?;
        thread::sleep(lasts);
        self.command(end)
    }

    fn command(&mut self, command: &str) -> Result {
        match &mut self.proxy {
            Some(proxy) => proxy.command(command),
            None => Ok(()),
        }
    }
}
