//! What only a look at our keys can tell: what others have left there.

use std::sync::Arc;

use dq_core::{Finding, Result, Severity};
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};

use crate::connect::Effect;
use crate::error::unexpected;
use crate::keys::Lane;
use crate::reply::Reply;
use crate::script::{PRELUDE, Script};
use crate::store::Store;

const CHECK: &str = "check";

/// Queues that are looked at at once.
const AHEAD: usize = 8;

/// What is found in one queue.
struct Found {
    aside: i64,
    /// Keys that hold something else than they should.
    foreign: Vec<String>,
}

impl Store {
    /// What others have left under our names.
    pub(crate) async fn inspect(&self) -> Result<Vec<Finding>> {
        let script = Script::new(&[PRELUDE, include_str!("scripts/inspect.lua")], Effect::None);
        let queues = self.queues(CHECK).await?;
        let mut lanes = Vec::new();
        for queue in &queues {
            lanes.extend(self.all_lanes(CHECK, queue).await?);
        }
        let looks: Vec<_> =
            lanes.into_iter().map(|lane| self.look(&script, lane).boxed()).collect();
        let mut looks = stream::iter(looks).buffered(AHEAD);
        let mut findings = Vec::new();
        while let Some(found) = looks.try_next().await? {
            findings.extend(found);
        }
        Ok(findings)
    }

    async fn look(&self, script: &Script, lane: Arc<Lane>) -> Result<Vec<Finding>> {
        let answer = script.on([&*lane]).run(&self.link, CHECK).await?;
        let read = |answer| {
            let mut reply = Reply::new(answer)?;
            let aside = reply.number()?;
            let mut foreign = Vec::new();
            while !reply.is_empty() {
                foreign.push(String::from_utf8_lossy(&reply.bytes()?).into_owned());
            }
            Some(Found { aside, foreign })
        };
        match read(answer) {
            Some(found) => Ok(of_queue(&lane, found)),
            None => unexpected(CHECK),
        }
    }
}

fn of_queue(lane: &Lane, found: Found) -> Vec<Finding> {
    let mut findings = Vec::new();
    let queue = &lane.queue;
    if found.aside > 0 {
        let (job, aside) = (&lane.keys[1], &lane.keys[8]);
        findings.push(Finding {
            severity: Severity::Warning,
            code: "redis.strays",
            cause: format!(
                "{} entries of queue {queue} are no jobs of ours and were put aside",
                found.aside
            ),
            remedy: format!(
                "find out who writes there; they are listed by ZRANGE {aside} 0 -1, what they held \
                 is in the hash {job}; DEL {aside} forgets them"
            ),
        });
    }
    for key in found.foreign {
        findings.push(Finding {
            severity: Severity::Error,
            code: "redis.foreign-key",
            cause: format!("queue {queue} cannot be served: the key {key} holds something else"),
            remedy: if lane.is_javas(&key) {
                "rename or remove that key, or use another name for the queue".to_owned()
            } else {
                "rename or remove that key, or choose another `prefix`".to_owned()
            },
        });
    }
    findings
}
