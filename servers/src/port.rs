//! Free ports on 127.0.0.1.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// Below the ephemeral ports, so that a client that reconnects to a stopped server cannot get its
/// port and connect to itself. Low enough for Redis's cluster bus port, 10000 above the node's.
const FIRST: u16 = 10_000;

const COUNT: u64 = 12_000;

/// Returns a port for a server that must find its old port free when it restarts. Another process
/// may take the port before the server does, so the caller must retry.
pub fn free() -> u16 {
    pick(is_free)
}

/// The cluster bus port, 10000 above, is also free.
pub(crate) fn free_with_bus() -> u16 {
    pick(|port| is_free(port) && is_free(port + 10_000))
}

fn pick(is_usable: impl Fn(u16) -> bool) -> u16 {
    // A slow server binds its port seconds later, and must not share it with the next server. Bus
    // ports are not listed: the caller retries.
    static RECENT: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    let mut recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
    let excess = recent.len().saturating_sub(1000);
    recent.drain(..excess);
    // Each `RandomState` has its own key, so processes that start together get different ports.
    let random = RandomState::new();
    let port = (0..COUNT)
        .map(|attempt| FIRST + (random.hash_one(attempt) % COUNT) as u16)
        .find(|port| !recent.contains(port) && is_usable(*port))
        .unwrap_or_else(|| panic!("127.0.0.1 has no free port"));
    recent.push(port);
    port
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
