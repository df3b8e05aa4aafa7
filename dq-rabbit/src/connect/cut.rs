//! A way to end a connection that no longer does what it is told.
//!
//! The client writes nothing at all while the broker blocks a connection, the farewell included, and
//! waits for ever for a broker that takes a connection and then says nothing. Both would keep a thread
//! and a socket for each attempt. So we keep a second handle of the socket and shut it.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Shuts the socket when dropped.
#[derive(Debug, Default)]
pub(super) struct Cut {
    socket: Arc<Mutex<Option<TcpStream>>>,
}

/// Where the socket is put once there is one.
#[derive(Debug)]
pub(super) struct Slot {
    socket: Weak<Mutex<Option<TcpStream>>>,
}

impl Cut {
    pub(super) fn slot(&self) -> Slot {
        Slot { socket: Arc::downgrade(&self.socket) }
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(socket) = socket.take() {
            // Already shut if the farewell has worked.
            socket.shutdown(Shutdown::Both).ok();
        }
    }
}

impl Slot {
    /// Keeps a second handle of this socket.
    pub(super) fn keep(&self, socket: &tokio::net::TcpStream) -> std::io::Result<()> {
        let Some(slot) = self.socket.upgrade() else {
            return Err(std::io::ErrorKind::Interrupted.into());
        };
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(second_handle(socket)?);
        Ok(())
    }
}

#[cfg(unix)]
fn second_handle(socket: &tokio::net::TcpStream) -> std::io::Result<TcpStream> {
    use std::os::fd::AsFd;
    Ok(socket.as_fd().try_clone_to_owned()?.into())
}

#[cfg(windows)]
fn second_handle(socket: &tokio::net::TcpStream) -> std::io::Result<TcpStream> {
    use std::os::windows::io::AsSocket;
    Ok(socket.as_socket().try_clone_to_owned()?.into())
}
