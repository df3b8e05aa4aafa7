//! A small blocking Redis client for test set-up and checks, independent of the tested code.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::process::TIMEOUT;

/// A reply from Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Null.
    Nil,
    /// An integer.
    Int(i64),
    /// A string, or a status such as `OK`.
    Text(Vec<u8>),
    /// An array of replies.
    List(Vec<Reply>),
    /// An error, with its code: `WRONGTYPE …`.
    Error(String),
}

impl Reply {
    /// Returns whether this is the status `OK`.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Text(text) if text == b"OK")
    }

    /// Returns whether this is null.
    pub fn is_nil(&self) -> bool {
        *self == Self::Nil
    }

    /// Returns the integer. Panics on another type, like all following methods.
    #[track_caller]
    pub fn int(&self) -> i64 {
        let Self::Int(number) = self else {
            panic!("expected an integer from Redis, got {self:?}")
        };
        *number
    }

    /// Returns the bytes of a string.
    #[track_caller]
    pub fn bytes(&self) -> &[u8] {
        let Self::Text(text) = self else { panic!("expected a string from Redis, got {self:?}") };
        text
    }

    /// Returns the string as text; invalid UTF-8 is replaced.
    #[track_caller]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    /// Returns an array's elements.
    #[track_caller]
    pub fn list(&self) -> &[Reply] {
        let Self::List(list) = self else { panic!("expected an array from Redis, got {self:?}") };
        list
    }

    /// Returns an error's text.
    #[track_caller]
    pub fn error(&self) -> &str {
        let Self::Error(error) = self else { panic!("expected an error from Redis, got {self:?}") };
        error
    }
}

/// A connection, for stateful commands: `MULTI`, `SUBSCRIBE`, `SELECT`.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<UnixStream>,
}

impl Connection {
    pub(crate) fn open(socket: &Path, password: Option<&str>) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        // A frozen server must fail the test, not hang it.
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut connection = Self { stream: BufReader::new(stream) };
        if let Some(password) = password {
            connection.request(&[b"AUTH", password.as_bytes()])?;
        }
        Ok(connection)
    }

    /// Sends a command and waits up to 300 s for its reply.
    #[track_caller]
    pub fn command(&mut self, arguments: &[&str]) -> Reply {
        let arguments: Vec<&[u8]> = arguments.iter().map(|argument| argument.as_bytes()).collect();
        self.command_bytes(&arguments)
    }

    /// Like [`command`](Self::command), for binary arguments.
    #[track_caller]
    pub fn command_bytes(&mut self, arguments: &[&[u8]]) -> Reply {
        self.request(arguments).unwrap_or_else(|error| panic!("Redis does not reply: {error}"))
    }

    /// Waits up to 300 s for the next reply, such as a subscription's message.
    #[track_caller]
    pub fn receive(&mut self) -> Reply {
        self.read().unwrap_or_else(|error| panic!("no message from Redis: {error}"))
    }

    pub(crate) fn request(&mut self, arguments: &[&[u8]]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            request.extend_from_slice(argument);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)?;
        self.read()
    }

    fn read(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let line = line.strip_suffix("\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::InvalidData)?;
        let number = || rest.parse::<i64>().map_err(io::Error::other);
        Ok(match kind {
            "+" => Reply::Text(rest.as_bytes().to_vec()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(number()?),
            "$" | "*" if number()? < 0 => Reply::Nil,
            "$" => {
                let mut text = vec![0; number()? as usize + 2];
                self.stream.read_exact(&mut text)?;
                text.truncate(text.len() - 2);
                Reply::Text(text)
            }
            "*" => Reply::List((0..number()?).map(|_| self.read()).collect::<io::Result<_>>()?),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        })
    }
}
