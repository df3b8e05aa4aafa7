//! The start of the AMQP 0-9-1 handshake, which identifies a ready server.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

const PROTOCOL_HEADER: &[u8] = b"AMQP\x00\x00\x09\x01";

/// For each step.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Reads `connection.start`, which contains the cluster's name. RabbitMQ opens this port last.
pub(super) fn first_frame(port: u16) -> Result<Vec<u8>> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(PROTOCOL_HEADER)?;
    // Type (1 byte), channel (2), payload length (4).
    let mut frame_header = [0; 7];
    stream.read_exact(&mut frame_header)?;
    // 1 is a method frame.
    let [1, 0, 0, length @ ..] = frame_header else {
        return Err(Error::new(ErrorKind::InvalidData, "the server does not speak AMQP 0-9-1"));
    };
    // Far above the frame's size; another server on the port may send any length.
    let mut frame = vec![0; u32::from_be_bytes(length).min(1 << 16) as usize];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}
