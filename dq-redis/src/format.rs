//! Formats of the stored data, for processes of different versions that share a store.
//!
//! A format has a number. A version writes one format. A store says which format it has, which is the
//! oldest one whose versions may still *write* there, and which the oldest whose versions may still
//! *read* there.
//! Additive changes, which older versions need not know, raise the number and leave both alone.
//!
//! - The hash `{prefix}:format` says it for the whole prefix, in the fields `format`, `write` and
//!   `read`. It is read when a process connects: a process that is too old for either is refused, and
//!   a newer one raises the format.
//! - The field `format` of the hash `meta` of a partition, as `format/write/read`, says it for the
//!   partition. A version that stores what older ones cannot read sets it in the same script. All
//!   scripts that read or change jobs look at it, so that processes that have been connected since
//!   before are refused there, but for `settle` and `renew`, by which they finish what they hold.
//!   Absent, every version may do everything.

use dq_core::Result;

use crate::connect::Effect;
use crate::error::{too_old, unexpected};
use crate::reply::Reply;
use crate::script::Script;
use crate::store::Store;

/// The number of the format that this version writes; also in `scripts/library/access.lua`.
const OWN: u32 = 1;
/// The oldest format whose versions may write this one.
const OLDEST_WRITER: u32 = 1;
/// The oldest format whose versions may read this one.
const OLDEST_READER: u32 = 1;

const CONNECT: &str = "connect";

impl Store {
    /// Compares the format of the prefix with that of this version, and raises it.
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
            // A field that another program has written counts as too new.
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
