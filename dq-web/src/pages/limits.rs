//! A queue's limits: how full they are, which groups wait, and the form that changes them.

use dq_core::{Backend, JobState};
use dq_ops::{LimitChange, LimitsView, QueueSummary, WaitingGroups};

use super::chrome::Chrome;
use super::format::number;
use crate::problem::Problem;

/// The groups that wait longest; `None` if the queue has no limit of groups, or the store cannot
/// list them.
pub(super) async fn waiting_groups(c: &Chrome, queue: &QueueSummary) -> Option<WaitingGroups> {
    queue.limits.as_ref()?.group_max_running?;
    c.session.waiting_groups(&queue.queue).await.ok()
}

/// The values of the form; `None` if the store keeps no limits.
pub(super) struct LimitsForm {
    pub(super) max_running: String,
    /// `None` if the store keeps no limits of groups.
    pub(super) group_max_running: Option<String>,
    pub(super) rate: String,
    pub(super) overridden: bool,
}

impl LimitsForm {
    pub(super) fn of(c: &Chrome, queue: &QueueSummary) -> Option<Self> {
        let capabilities = c.session.ops().dq().backend().capabilities();
        let limits = queue.limits.as_ref();
        let max = |max: Option<u32>| max.map_or_else(String::new, |max| max.to_string());
        let of_group = max(limits.and_then(|limits| limits.group_max_running));
        (capabilities.flow && !queue.queue.is_reserved()).then(|| Self {
            max_running: max(limits.and_then(|limits| limits.max_running)),
            group_max_running: Some(of_group).filter(|_| capabilities.groups),
            rate: limits.and_then(|limits| limits.rate.clone()).unwrap_or_default(),
            overridden: limits.is_some_and(|limits| limits.overridden),
        })
    }
}

/// Reads the form. An empty field removes the limit; an absent one keeps it.
pub(super) fn change_of(
    max_running: Option<&str>,
    group_max_running: Option<&str>,
    rate: Option<&str>,
) -> Result<LimitChange, Problem> {
    let number = |name: &str, text: Option<&str>| {
        let text = text.map(str::trim);
        let parse = |text: &str| match text {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                Problem::bad_request(format!("{name} is {text:?}, which is not a number"))
            }),
        };
        text.map(parse).transpose()
    };
    let rate = rate.map(str::trim).map(|text| match text {
        "" => Ok(None),
        text => text.parse().map(Some),
    });
    Ok(LimitChange {
        max_running: number("max_running", max_running)?,
        group_max_running: number("group_max_running", group_max_running)?,
        rate: rate.transpose()?,
    })
}

/// For templates, which pass references.
impl Chrome {
    pub(super) fn throttled(&self, queue: &QueueSummary) -> bool {
        queue.limits.as_ref().is_some_and(|limits| limits.throttled)
    }

    /// The rate, and when the next job starts if none may now.
    pub(super) fn limit_rate(&self, queue: &QueueSummary) -> Option<String> {
        let limits = queue.limits.as_ref()?;
        let next = limits.opens_at.filter(|_| !limits.throttled);
        let next = next.map(|at| format!(" · {} {}", self.t.next_start, self.when(&at).relative));
        Some(format!("{}{}", limits.rate.as_ref()?, next.unwrap_or_default()))
    }

    /// The maximum beside a count of the table.
    pub(super) fn bar(&self, queue: &QueueSummary, state: &JobState) -> Option<u32> {
        queue.limits.as_ref().filter(|_| *state == JobState::Running)?.max_running
    }

    /// Such as `6 at once · 10/1s`; `None` without limits.
    pub(super) fn limits_text(&self, limits: &Option<LimitsView>) -> Option<String> {
        let limits = limits.as_ref()?;
        let at_once = limits.max_running.map(|max| format!("{max} {}", self.t.at_once));
        let of_group = limits
            .group_max_running
            .map(|max| format!("{}: {max} {}", self.t.each_group, self.t.at_once));
        let limits: Vec<_> =
            at_once.into_iter().chain(of_group).chain(limits.rate.clone()).collect();
        (!limits.is_empty()).then(|| limits.join(" · "))
    }

    /// Such as `3 of 6 at once`.
    pub(super) fn at_once(&self, running: &u64, max: &u32) -> String {
        format!("{} {} {} {}", number(*running), self.t.max, number((*max).into()), self.t.at_once)
    }
}
