//! The first words of AMQP 0-9-1, by which a server shows that it is ready, and whose it is.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// What a client says first.
const PROTOCOL: &[u8] = b"AMQP\x00\x00\x09\x01";

/// How long a server may take for one step.
const PATIENCE: Duration = Duration::from_secs(5);

/// The first frame of the server at `port` of 127.0.0.1: `connection.start` with its properties,
/// the name of its cluster among them. RabbitMQ opens the port when all the rest is done.
pub(super) fn hear(port: u16) -> Result<Vec<u8>> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(PROTOCOL)?;
    // Type, channel, and the length of what follows but for the frame's end.
    let mut head = [0; 7];
    stream.read_exact(&mut head)?;
    let [1, 0, 0, length @ ..] = head else {
        return Err(Error::new(ErrorKind::InvalidData, "the server speaks no AMQP 0-9-1"));
    };
    let mut frame = vec![0; u32::from_be_bytes(length).min(1 << 16) as usize];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}
