//! Free ports of 127.0.0.1.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// First port of the range. The range is below the ephemeral ports: a client that retries to
/// connect to a stopped server could otherwise be assigned the server's port and connect to itself.
/// It is low enough for the cluster bus port of a Redis node, which is 10000 above its port.
const FIRST: u16 = 10_000;

/// Number of ports in the range.
const COUNT: u64 = 12_000;

/// A free port. Another process may take it before the server does; the caller must then retry with
/// another port.
pub(crate) fn free() -> u16 {
    pick(is_free)
}

/// A free port for a node of a Redis cluster: the port of its cluster bus, 10000 above, is free
/// too.
pub(crate) fn free_with_bus() -> u16 {
    pick(|port| is_free(port) && is_free(port + 10_000))
}

/// A random port of the range that is usable and was not returned recently.
fn pick(is_usable: impl Fn(u16) -> bool) -> u16 {
    // Ports that were returned recently: a slow server binds its port seconds later, and must not
    // share it with the next one. Bus ports are not among them: for these, the caller's next attempt
    // must do.
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
