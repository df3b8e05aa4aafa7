//! A small blocking Redis client for the set-up and the checks of tests, independent of the tested
//! code.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::process::TIMEOUT;

/// A reply of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Null: no such value.
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
    /// Whether this is the status `OK`.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Text(text) if text == b"OK")
    }

    /// Whether this is null.
    pub fn is_nil(&self) -> bool {
        *self == Self::Nil
    }

    /// The integer. Panics if the reply has another type, like all following methods.
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => panic!("expected an integer from Redis, got {other:?}"),
        }
    }

    /// The bytes of a string.
    #[track_caller]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text,
            other => panic!("expected a string from Redis, got {other:?}"),
        }
    }

    /// The string as text; invalid UTF-8 is replaced.
    #[track_caller]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    /// The elements of an array.
    #[track_caller]
    pub fn list(&self) -> &[Reply] {
        match self {
            Self::List(list) => list,
            other => panic!("expected an array from Redis, got {other:?}"),
        }
    }

    /// The text of an error.
    #[track_caller]
    pub fn error(&self) -> &str {
        match self {
            Self::Error(error) => error,
            other => panic!("expected an error from Redis, got {other:?}"),
        }
    }
}

/// A connection, for commands whose effect is bound to it: `MULTI`, `SUBSCRIBE`, `SELECT`.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<UnixStream>,
}

impl Connection {
    /// Connects and, with a password, authenticates.
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

    /// Sends a command and waits for its reply, for 120 s at most.
    #[track_caller]
    pub fn command(&mut self, arguments: &[&str]) -> Reply {
        let arguments: Vec<&[u8]> = arguments.iter().map(|argument| argument.as_bytes()).collect();
        self.command_bytes(&arguments)
    }

    /// Like [`command`](Self::command), for arguments that are not text.
    #[track_caller]
    pub fn command_bytes(&mut self, arguments: &[&[u8]]) -> Reply {
        self.request(arguments).unwrap_or_else(|error| panic!("Redis does not reply: {error}"))
    }

    /// Waits for the next reply, for 120 s at most, for instance a message of a subscription.
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
