//! Formats of the stored data, for processes of different versions on one store.
//!
//! A format is a number, and each version writes one. A store records three: `format`, its own;
//! `write`, the oldest that may still write there; `read`, the oldest that may still read there.
//! Additive changes, which older versions need not know, raise only `format`.
//!
//! - The hash `{prefix}:format` has these fields for the whole prefix. When connecting, a process
//!   too old for `write` or `read` is refused; a newer one raises the format.
//! - The field `format` in a partition's hash `meta` has `format/write/read` for that partition. A
//!   version sets it in the script that stores data unreadable for older versions. All scripts that
//!   read or change jobs check it, so it also refuses processes that connected earlier. They may
//!   still call `settle` and `renew`. Without the field, every version may do everything.
//!
//! Format 2 adds limits of queues. A limit sets the partition's field to `2/2/1`, so older
//! versions, which would exceed it, can neither claim nor store jobs there. Format 3 adds groups. A
//! limit of groups sets the field to `3/3/3`, so older versions, which would not find parked jobs,
//! cannot read them either. Without a limit, the field is lowered again.

use dq_core::Result;

use crate::error::{Effect, too_old};
use crate::reply::Reply;
use crate::script::Script;
use crate::store::RedisBackend;

/// The format that this version writes; also in `scripts/library/keys.lua`.
const OWN: u32 = 3;
/// The oldest formats that may write and read this one.
const OLDEST_WRITER: u32 = 1;
const OLDEST_READER: u32 = 1;

impl RedisBackend {
    /// Checks the prefix's format, and raises it to this version's.
    /// Errors: `Incompatible` if this version is too old.
    pub(crate) async fn check_format(&self) -> Result<()> {
        let script = Script::new(&[], include_str!("scripts/format.lua"), Effect::Repeatable);
        let key = self.layout().format();
        let mut call = script.on_keys([&key]);
        call.arg(OWN).arg(OLDEST_WRITER).arg(OLDEST_READER);
        let mut stored = Reply::new(call.run(&self.link).await?)?;
        for oldest in [stored.bytes()?, stored.bytes()?] {
            // A field from another program counts as too new.
            let parsed = str::from_utf8(&oldest).ok().and_then(|text| text.parse().ok());
            if !oldest.is_empty() && parsed.is_none_or(|oldest: u32| oldest > OWN) {
                return Err(too_old());
            }
        }
        Ok(())
    }
}
