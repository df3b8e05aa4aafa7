//! A minimal blocking Redis client with little cost of its own: it sends prepared requests and only
//! counts replies.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::plan::Result;

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

    /// Sends commands with one-line replies and waits for that many lines.
    pub(super) fn exchange(&mut self, commands: &[u8], mut replies: usize) -> Result<()> {
        self.stream.write_all(commands)?;
        let mut at_line_start = true;
        while replies > 0 {
            let read = self.stream.read(&mut self.buffer)?;
            if read == 0 {
                return Err("the server closed the connection".into());
            }
            for byte in &self.buffer[..read] {
                if at_line_start && *byte == b'-' {
                    let text = String::from_utf8_lossy(&self.buffer[..read]);
                    return Err(format!("Redis replied with an error: {text}").into());
                }
                at_line_start = *byte == b'\n';
                replies -= usize::from(at_line_start);
            }
        }
        Ok(())
    }
}

pub(super) fn command(commands: &mut Vec<u8>, words: &[&[u8]]) {
    // Writing to a Vec cannot fail.
    let _ = write!(commands, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(commands, "${}\r\n", word.len());
        commands.extend_from_slice(word);
        commands.extend_from_slice(b"\r\n");
    }
}
