//! Shuts down the socket of a connection that the client library would keep open.
//!
//! While the broker blocks a connection, the client library writes nothing to it, not even
//! `connection.close`, and it waits without limit for a broker that accepts a connection and then
//! sends nothing. Both would leak a thread and a socket for each attempt to connect. So a second
//! handle of the socket is kept, to shut it down.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};

use dq_core::sync::lock;

#[derive(Debug, Default)]
enum Socket {
    #[default]
    Unconnected,
    Connected(TcpStream),
    /// The owner was dropped.
    Unwanted,
}

/// Shuts the socket down when dropped.
#[derive(Debug, Default)]
pub(super) struct ShutdownOnDrop {
    socket: Arc<Mutex<Socket>>,
}

/// Receives the socket once it is connected, on a thread of the client library.
#[derive(Debug)]
pub(super) struct SocketSlot {
    socket: Arc<Mutex<Socket>>,
}

impl ShutdownOnDrop {
    pub(super) fn slot(&self) -> SocketSlot {
        SocketSlot { socket: Arc::clone(&self.socket) }
    }
}

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        if let Socket::Connected(socket) =
            std::mem::replace(&mut *lock(&self.socket), Socket::Unwanted)
        {
            // Fails if an orderly close has shut it down already.
            socket.shutdown(Shutdown::Both).ok();
        }
    }
}

impl SocketSlot {
    /// Stores a second handle of the socket.
    ///
    /// # Errors
    /// `Interrupted` if the owner was dropped meanwhile, and errors of duplicating the handle.
    pub(super) fn store(&self, socket: &tokio::net::TcpStream) -> std::io::Result<()> {
        let mut slot = lock(&self.socket);
        if matches!(*slot, Socket::Unwanted) {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        *slot = Socket::Connected(duplicate(socket)?);
        Ok(())
    }
}

#[cfg(unix)]
fn duplicate(socket: &tokio::net::TcpStream) -> std::io::Result<TcpStream> {
    use std::os::fd::AsFd;
    Ok(socket.as_fd().try_clone_to_owned()?.into())
}

#[cfg(windows)]
fn duplicate(socket: &tokio::net::TcpStream) -> std::io::Result<TcpStream> {
    use std::os::windows::io::AsSocket;
    Ok(socket.as_socket().try_clone_to_owned()?.into())
}
