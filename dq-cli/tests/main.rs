//! All integration tests in one program, because linking takes long.

mod deploy;
mod import;
mod import_postgres;
mod migrate;
mod program;
mod serve;
mod support;
mod transcripts;
