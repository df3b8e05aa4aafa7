//! The beginning of AMQP 0-9-1's handshake, which shows that a server is ready and identifies it.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// The protocol header, which a client sends first.
const PROTOCOL_HEADER: &[u8] = b"AMQP\x00\x00\x09\x01";

/// Timeout of each step.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the first frame of the server on `port` of 127.0.0.1: `connection.start` with the server's
/// properties, including the name of its cluster. RabbitMQ opens the port last.
pub(super) fn first_frame(port: u16) -> Result<Vec<u8>> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(PROTOCOL_HEADER)?;
    // One byte of type, two of channel, four of payload length.
    let mut frame_header = [0; 7];
    stream.read_exact(&mut frame_header)?;
    // 1 is the type of a method frame.
    let [1, 0, 0, length @ ..] = frame_header else {
        return Err(Error::new(ErrorKind::InvalidData, "the server does not speak AMQP 0-9-1"));
    };
    // The bound is far above the frame's size: another server on the port may send any length.
    let mut frame = vec![0; u32::from_be_bytes(length).min(1 << 16) as usize];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}
