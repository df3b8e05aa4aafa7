//! A client that does nothing but write and read: the fastest that a server can be asked.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::plan::Result;

/// One blocking connection.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    pub(super) fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; 16 * 1_024] })
    }

    /// Sends commands that are answered by one line each, and waits for that many lines.
    pub(super) fn exchange(&mut self, commands: &[u8], mut answers: usize) -> Result<()> {
        self.stream.write_all(commands)?;
        let mut begins = true;
        while answers > 0 {
            let read = self.stream.read(&mut self.buffer)?;
            if read == 0 {
                return Err("the server has gone".into());
            }
            for byte in &self.buffer[..read] {
                if begins && *byte == b'-' {
                    let text = String::from_utf8_lossy(&self.buffer[..read]);
                    return Err(format!("Redis refuses: {text}").into());
                }
                begins = *byte == b'\n';
                answers -= usize::from(begins);
            }
        }
        Ok(())
    }
}

/// Adds a command to those to be sent.
pub(super) fn command(commands: &mut Vec<u8>, words: &[&[u8]]) {
    // Writing to a Vec cannot fail.
    let _ = write!(commands, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(commands, "${}\r\n", word.len());
        commands.extend_from_slice(word);
        commands.extend_from_slice(b"\r\n");
    }
}
