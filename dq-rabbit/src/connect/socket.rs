//! Shuts down a socket that the client library would keep open.
//!
//! On a blocked connection, the client library does not even write `connection.close`. It also
//! waits without limit for a broker that accepts a connection and sends nothing. Each attempt to
//! connect would leak a thread and a socket, so a second handle of the socket shuts it down.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};

use dq_core::sync::lock;

#[derive(Debug, Default)]
pub(super) enum Socket {
    #[default]
    Unconnected,
    Connected(TcpStream),
    /// The owner was dropped before the socket was connected.
    Unwanted,
}

/// The owner of a socket, which shuts it down when dropped. A thread of the client library
/// [stores](store) the connected socket here.
#[derive(Debug, Default)]
pub(super) struct ShutdownOnDrop(pub(super) Arc<Mutex<Socket>>);

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        if let Socket::Connected(socket) = std::mem::replace(&mut *lock(&self.0), Socket::Unwanted)
        {
            socket.shutdown(Shutdown::Both).ok();
        }
    }
}

/// # Errors
/// `Interrupted` if the owner was dropped meanwhile; errors of duplicating the handle.
pub(super) fn store(slot: &Mutex<Socket>, socket: &tokio::net::TcpStream) -> std::io::Result<()> {
    let mut slot = lock(slot);
    if matches!(*slot, Socket::Unwanted) {
        return Err(std::io::ErrorKind::Interrupted.into());
    }
    *slot = Socket::Connected(duplicate(socket)?);
    Ok(())
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
