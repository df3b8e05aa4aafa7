//! Announcements of runners. A later one of the same name replaces an earlier one.

use dq_core::{Announced, Announcement, Result};

use crate::engine::Engine;
use crate::error::LostReply;
use crate::log::wire::Command;
use crate::log::{AppliedAt, Replica, reply_only};

impl Engine {
    pub(crate) async fn announce(&self, announcement: Announcement) -> Result<()> {
        let command = Command::Announce(announcement.into());
        self.log.call("announce", LostReply::Unavailable, command, reply_only).await
    }

    pub(crate) async fn runners(&self) -> Result<Vec<Announced>> {
        let read = |replica: &mut Replica, (), at: AppliedAt| replica.machine().runners(at.now);
        self.log.call("runners", LostReply::Unavailable, Command::Barrier, read).await
    }
}
