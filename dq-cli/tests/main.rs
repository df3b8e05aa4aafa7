//! All integration tests in one program, because linking is what takes long.

mod import;
mod program;
mod serve;
mod support;
mod transcripts;
