//! Dead jobs, grouped by error.

use std::collections::HashMap;

use dq_core::{DeadKind, JobState, Order, QueueName, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::openapi;
use crate::ops::Session;
use crate::text;

/// A grouping examines at most this many dead jobs, the latest first.
const MAX_GROUPED: usize = 10_000;

const MAX_GROUPS: usize = 100;

/// Characters of a message by which its group is found.
const MAX_PATTERN: usize = 160;

/// A queue's dead jobs, grouped by error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct DeadGroups {
    /// The groups, largest first; at most 100.
    pub groups: Vec<DeadGroup>,
    /// Jobs examined: the latest 10,000 at most.
    pub examined: u64,
    /// Whether all dead jobs in the main store were examined, and all groups are listed.
    pub complete: bool,
}

/// Dead jobs whose errors differ only in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct DeadGroup {
    /// Why the jobs are dead.
    #[schema(value_type = openapi::DeadKind)]
    pub kind: DeadKind,
    /// The message's first line, with `#` for each number.
    pub pattern: String,
    /// The pattern's longest part without numbers, for use in
    /// [`JobFilter::error`](crate::JobFilter::error). It may match other groups, too.
    pub search: String,
    /// The latest job's message.
    pub sample: String,
    /// Job count.
    pub count: u64,
    /// The earliest time of death.
    #[serde(with = "text")]
    pub first: Timestamp,
    /// The latest time of death.
    #[serde(with = "text")]
    pub last: Timestamp,
}

impl Session {
    /// Groups a queue's dead jobs by error.
    pub async fn dead(&self, queue: &QueueName) -> Result<DeadGroups> {
        let handle = self.ops.dq().queue(queue)?;
        let mut groups: HashMap<(DeadKind, String), DeadGroup> = HashMap::new();
        let (mut examined, mut after) = (0, None);
        loop {
            let listing = handle.browse(JobState::Dead).payloads(false).limit(1_000);
            let page = listing.order(Order::Descending).after(after).await?;
            for view in &page.jobs {
                let Some(dead) = self.summary(view).dead else { continue };
                let (pattern, search) = pattern_of(&dead.message);
                groups
                    .entry((dead.kind, pattern.clone()))
                    .and_modify(|group| {
                        group.count += 1;
                        group.first = group.first.min(dead.at);
                        group.last = group.last.max(dead.at);
                    })
                    .or_insert_with(|| DeadGroup {
                        kind: dead.kind,
                        pattern,
                        search,
                        sample: dead.message.clone(),
                        count: 1,
                        first: dead.at,
                        last: dead.at,
                    });
            }
            examined += page.jobs.len();
            after = page.next;
            if after.is_none() || examined >= MAX_GROUPED {
                break;
            }
        }
        let complete = after.is_none() && groups.len() <= MAX_GROUPS;
        let mut groups: Vec<DeadGroup> = groups.into_values().collect();
        groups.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.pattern.cmp(&b.pattern)));
        groups.truncate(MAX_GROUPS);
        Ok(DeadGroups { groups, examined: examined as u64, complete })
    }
}

/// Returns the message's pattern and the pattern's longest part without numbers.
fn pattern_of(message: &str) -> (String, String) {
    let line = message.lines().next().unwrap_or_default();
    let line: String = line.chars().take(MAX_PATTERN).collect();
    let parts: Vec<&str> = line.split(|character: char| character.is_ascii_digit()).collect();
    let search = parts.iter().max_by_key(|part| part.len()).unwrap_or(&"").trim().to_owned();
    let mut pattern = String::new();
    for (index, part) in parts.iter().enumerate() {
        // Empty parts lie between digits of one number, which gets one `#`.
        if index > 0 && (!part.is_empty() || index + 1 == parts.len()) {
            pattern.push('#');
        }
        pattern += part;
    }
    (pattern, search)
}

#[cfg(test)]
mod tests {
    use super::pattern_of;

    #[test]
    fn messages_that_differ_in_numbers_have_one_pattern() {
        let (pattern, search) = pattern_of("order 4711 not found in shop 3\nsecond line");
        assert_eq!(
            (pattern.as_str(), search.as_str()),
            ("order # not found in shop #", "not found in shop")
        );
        assert_eq!(pattern_of("order 99 not found in shop 12").0, pattern);
        assert_eq!(pattern_of("503").0, "#");
        assert_eq!(pattern_of("").0, "");
        assert_eq!(pattern_of("7 of 9").0, "# of #");
    }
}
