//! A tiny blocking client of Redis for the set-up of tests, so that what is tested is not also what
//! checks it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::process::PATIENCE;

/// An answer of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// No such value.
    Nil,
    /// A number.
    Int(i64),
    /// A value, or a state such as `OK`.
    Text(Vec<u8>),
    /// Several answers.
    List(Vec<Reply>),
    /// A refusal, with its code: `WRONGTYPE …`.
    Error(String),
}

impl Reply {
    /// Whether this is the state `OK`.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Text(text) if text == b"OK")
    }

    /// Whether there is no value.
    pub fn is_nil(&self) -> bool {
        *self == Self::Nil
    }

    /// The number. Panics if this is something else, as all that follow do.
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => panic!("expected a number from Redis, got {other:?}"),
        }
    }

    /// The value's bytes.
    #[track_caller]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text,
            other => panic!("expected a value from Redis, got {other:?}"),
        }
    }

    /// The value as text; bytes that are none are replaced.
    #[track_caller]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    /// The answers of a list.
    #[track_caller]
    pub fn list(&self) -> &[Reply] {
        match self {
            Self::List(list) => list,
            other => panic!("expected a list from Redis, got {other:?}"),
        }
    }

    /// The refusal's text.
    #[track_caller]
    pub fn error(&self) -> &str {
        match self {
            Self::Error(error) => error,
            other => panic!("expected an error from Redis, got {other:?}"),
        }
    }
}

/// One connection, for what belongs to a connection: `MULTI`, `SUBSCRIBE`, `SELECT`.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<UnixStream>,
}

impl Connection {
    /// Connects and, with a password, authenticates.
    pub(crate) fn open(socket: &Path, password: Option<&str>) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        // A frozen server shall fail a test, not hang it.
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut connection = Self { stream: BufReader::new(stream) };
        if let Some(password) = password {
            connection.ask(&[b"AUTH", password.as_bytes()])?;
        }
        Ok(connection)
    }

    /// Sends a command and waits for its answer, for 30 s at most.
    #[track_caller]
    pub fn command(&mut self, words: &[&str]) -> Reply {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.command_bytes(&words)
    }

    /// As [`command`](Self::command), for what is not text.
    #[track_caller]
    pub fn command_bytes(&mut self, words: &[&[u8]]) -> Reply {
        self.ask(words).unwrap_or_else(|error| panic!("Redis does not answer: {error}"))
    }

    /// Waits for the next message, such as a push to a subscriber, for 30 s at most.
    #[track_caller]
    pub fn receive(&mut self) -> Reply {
        self.read().unwrap_or_else(|error| panic!("Redis says nothing: {error}"))
    }

    pub(crate) fn ask(&mut self, words: &[&[u8]]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
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
