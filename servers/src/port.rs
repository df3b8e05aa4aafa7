//! Free ports of 127.0.0.1.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// Below the ports that systems give to outgoing connections: a client that keeps trying a server
/// which is down could otherwise be given the server's port, and be connected to itself. And low
/// enough for the second port of a Redis cluster, 10000 above.
const FIRST: u16 = 10_000;
const COUNT: u64 = 12_000;

/// A port at which nobody listens. Another process may still take it before the server does, so
/// the server must be ready to be given another.
pub(crate) fn free() -> u16 {
    pick(is_free)
}

/// A free port `p` such that `p + 10000` is free too.
pub(crate) fn free_with_bus() -> u16 {
    pick(|port| is_free(port) && is_free(port + 10_000))
}

fn pick(fits: impl Fn(u16) -> bool) -> u16 {
    // A slow server listens only seconds later: meanwhile, none of ours is given the same port.
    static LATELY: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    let mut lately = LATELY.lock().unwrap_or_else(PoisonError::into_inner);
    let excess = lately.len().saturating_sub(1000);
    lately.drain(..excess);
    // Each `RandomState` has a key of its own, so processes that start together do not meet.
    let random = RandomState::new();
    let port = (0..COUNT)
        .map(|attempt| FIRST + (random.hash_one(attempt) % COUNT) as u16)
        .find(|port| !lately.contains(port) && fits(*port))
        .unwrap_or_else(|| panic!("no port of 127.0.0.1 is free"));
    lately.push(port);
    port
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
