//! Finds out whether notifications work: at the start, and whenever a connection is there again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::check::Notifications;
use super::configure::configure;
use super::ears::Ears;
use super::nodes::Nodes;
use crate::connect::Link;

/// Keeps the connections and what is known about notifications.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) nodes: Nodes,
    link: Arc<Link>,
    ears: Arc<Ears>,
    configure: bool,
    known: Mutex<Notifications>,
}

impl Watch {
    pub(super) async fn start(link: Arc<Link>, ears: Arc<Ears>, configure: bool) -> Self {
        let nodes = Nodes::start(Arc::clone(&link), Arc::clone(&ears)).await;
        Self { nodes, link, ears, configure, known: Mutex::new(Notifications::Unknown) }
    }

    /// Does not end.
    pub(super) async fn run(self: Arc<Self>) {
        let look = async {
            loop {
                self.ears.resumed.notified().await;
                self.look().await;
            }
        };
        tokio::join!(self.nodes.follow(), look);
    }

    /// What was found out last.
    pub(super) fn known(&self) -> Notifications {
        self.locked().clone()
    }

    /// Finds out anew, which takes two seconds where nothing is heard.
    pub(super) async fn look(&self) -> Notifications {
        // Each time: a server that was restarted, or is new in the cluster, has settings of its own.
        let refusal = if self.configure { configure(&self.link).await.err() } else { None };
        let heard = if self.nodes.all_up() { self.ears.cage.try_out().await.ok() } else { None };
        let found = match (heard, refusal) {
            (Some(true), _) => Notifications::Working,
            // What was lost with the connection says nothing about the settings.
            _ if !self.nodes.all_up() => Notifications::Unknown,
            (Some(false), Some(words)) => Notifications::Refused(words),
            (Some(false), None) => Notifications::Off,
            (None, _) => Notifications::Unknown,
        };
        self.note(found.clone());
        found
    }

    fn note(&self, found: Notifications) {
        let mut known = self.locked();
        if *known == found {
            return;
        }
        match found.finding() {
            Some(finding) => tracing::warn!("{finding}"),
            None => tracing::debug!("Redis: the expiry of keys is heard of"),
        }
        *known = found;
    }

    fn locked(&self) -> MutexGuard<'_, Notifications> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
