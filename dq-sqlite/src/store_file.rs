//! The open store's identity: the file at its path, and the id in its `meta` table.
//!
//! An open connection stays with its file when that is deleted, moved or replaced. Writes would be
//! acknowledged in a file that nobody opens again, and new connections would open another one.

use std::io;
use std::path::{Path, PathBuf};

use dq_core::ErrorKind;
use rusqlite::{Connection, ErrorCode};

use crate::error::{StoreError, StoreResult};
use crate::statements::Statements;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreFile {
    path: PathBuf,
    /// 16 random bytes, written when the tables are created.
    store_id: [u8; 16],
    inode: Inode,
}

impl StoreFile {
    pub(crate) fn of(conn: &Connection, statements: &Statements, path: &Path) -> StoreResult<Self> {
        let inode = inode(path).map_err(|error| missing(&error))?;
        Ok(Self { path: path.to_owned(), store_id: store_id(conn, statements)?, inode })
    }

    /// Fails with `Unavailable` if the path leads to another file. Costs one `stat`.
    pub(crate) fn verify(&self) -> StoreResult<()> {
        match inode(&self.path) {
            Ok(found) if found == self.inode => Ok(()),
            Ok(_) => Err(replaced()),
            Err(error) => Err(missing(&error)),
        }
    }

    /// Fails with `Unavailable` if a new connection has opened another file or store.
    pub(crate) fn verify_opened(
        &self,
        conn: &Connection,
        statements: &Statements,
    ) -> StoreResult<()> {
        self.verify()?;
        if self.is_store_of(conn, statements)? { Ok(()) } else { Err(replaced()) }
    }

    /// Returns whether the connection has this store open, in any file.
    pub(crate) fn is_store_of(
        &self,
        conn: &Connection,
        statements: &Statements,
    ) -> StoreResult<bool> {
        match store_id(conn, statements) {
            Ok(id) => Ok(id == self.store_id),
            // No such table, no row, or another type.
            Err(error)
                if error.sqlite_error_code().is_none_or(|code| code == ErrorCode::Unknown) =>
            {
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn store_id(conn: &Connection, statements: &Statements) -> rusqlite::Result<[u8; 16]> {
    conn.prepare_cached(&statements.store_id)?.query_row([], |row| row.get(0))
}

/// Device and inode.
#[cfg(unix)]
type Inode = (u64, u64);

#[cfg(unix)]
fn inode(path: &Path) -> io::Result<Inode> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Windows does not delete or rename a file that SQLite has open, so it is enough that the file
/// exists.
#[cfg(not(unix))]
type Inode = ();

#[cfg(not(unix))]
fn inode(path: &Path) -> io::Result<Inode> {
    std::fs::metadata(path).map(drop)
}

fn missing(error: &io::Error) -> StoreError {
    let message = if error.kind() == io::ErrorKind::NotFound {
        "the file was deleted or moved while it was open; nothing is written any more".to_owned()
    } else {
        format!("the file cannot be found any more: {error}")
    };
    StoreError::new(ErrorKind::Unavailable, message, REMEDY)
}

fn replaced() -> StoreError {
    StoreError::new(
        ErrorKind::Unavailable,
        "the file was replaced by another one while it was open; neither is written",
        REMEDY,
    )
}

const REMEDY: &str = "put the file back, or restart this program: it then opens the file that is \
                      at the path, or creates it";
