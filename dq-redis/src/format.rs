//! Formats of the stored data, for processes of different versions on one store.
//!
//! A format is a number, and each version writes one. A store records three formats: `format`, its
//! own; `write`, the oldest one that may still write there; and `read`, the oldest one that may
//! still read there. Additive changes, which older versions need not know, raise only `format`.
//!
//! - The hash `{prefix}:format` has these fields for the whole prefix. A process reads them when
//!   connecting. A process too old for `write` or `read` is refused; a newer one raises the format.
//! - The field `format` in a partition's hash `meta` has `format/write/read` for that partition. A
//!   version sets it in the same script that stores data unreadable for older versions. All scripts
//!   that read or change jobs check it, so it also refuses processes that connected earlier. They
//!   may still call `settle` and `renew`, to finish their leased jobs. Without the field, every
//!   version may do everything.

use dq_core::Result;

use crate::connect::Effect;
use crate::error::{too_old, unexpected};
use crate::reply::Reply;
use crate::script::Script;
use crate::store::Store;

/// The format that this version writes; also in `scripts/library/access.lua`.
const OWN: u32 = 1;
/// The oldest format that may write this one.
const OLDEST_WRITER: u32 = 1;
/// The oldest format that may read this one.
const OLDEST_READER: u32 = 1;

const CONNECT: &str = "connect";

impl Store {
    /// Checks the prefix's format, and raises it to this version's.
    ///
    /// # Errors
    /// `Incompatible` if this version is too old.
    pub(crate) async fn check_format(&self) -> Result<()> {
        let script = Script::new(&[], include_str!("scripts/format.lua"), Effect::None);
        let key = self.partitions.layout.format();
        let mut call = script.on_keys([&key]);
        call.arg(OWN).arg(OLDEST_WRITER).arg(OLDEST_READER);
        let Some(mut stored) = Reply::new(call.run(&self.link, CONNECT).await?) else {
            return unexpected(CONNECT);
        };
        let mut oldest = || {
            let text = stored.bytes()?;
            // A field from another program counts as too new.
            Some(match &text[..] {
                b"" => OWN,
                text => {
                    str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(u32::MAX)
                }
            })
        };
        let (Some(write), Some(read)) = (oldest(), oldest()) else {
            return unexpected(CONNECT);
        };
        if write.max(read) > OWN {
            return Err(too_old(CONNECT));
        }
        Ok(())
    }
}
