//! The operations that the commands need.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dq_core::{Due, QueueName, Target, Timestamp, format_exact_duration};
use dq_ops::{
    BackfillReport, BulkAction, BulkCount, BulkReport, FindingView, Forecasts, JobDetail,
    JobFilter, JobPage, JobQuery, LimitChange, Moved, QueueSummary, RunnerSummary,
    ScheduleDefinition, ScheduleDetail, ScheduleSummary, ScheduledJob, SimulationRequest,
    SimulationView, Timeline,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::client::Source;
use super::request::Request;
use crate::failure::Result;

#[derive(Deserialize)]
struct Changed {
    changed: bool,
}

impl Source {
    fn get<T: DeserializeOwned>(&self, path: impl Into<String>) -> Result<T> {
        self.send(Request::new("GET", path, None))
    }

    fn act<T: DeserializeOwned>(&self, path: impl Into<String>) -> Result<T> {
        self.send(Request::post(path, json!({})))
    }

    pub(crate) fn queues(&self) -> Result<Vec<QueueSummary>> {
        self.get("queues")
    }

    pub(crate) fn queue(&self, queue: &QueueName) -> Result<QueueSummary> {
        self.get(path_of(queue))
    }

    pub(crate) fn jobs(&self, queue: &QueueName, query: &JobQuery) -> Result<JobPage> {
        let filter = &query.filter;
        let order = if query.descending { "desc" } else { "asc" };
        let parameters = [
            ("state", Some(query.state.to_string())),
            ("limit", Some(query.limit.to_string())),
            ("order", Some(order.to_owned())),
            ("key_prefix", filter.key_prefix.clone()),
            ("due_from", filter.due_from.map(|at| at.to_string())),
            ("due_before", filter.due_before.map(|at| at.to_string())),
            ("error", filter.error.clone()),
            ("contains", query.contains.clone()),
            ("after", query.after.clone()),
        ];
        let given = parameters.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let given = given.map(|(name, value)| format!("{name}={}", encoded(&value)));
        self.get(format!("{}/jobs?{}", path_of(queue), given.collect::<Vec<_>>().join("&")))
    }

    pub(crate) fn job(&self, queue: &QueueName, target: &Target) -> Result<JobDetail> {
        self.get(path_of_job(queue, target))
    }

    pub(crate) fn timeline(&self, queue: &QueueName, target: &Target) -> Result<Timeline> {
        self.get(format!("{}/timeline", path_of_job(queue, target)))
    }

    /// Changes one job; returns its new due time, if the action gives it one.
    pub(crate) fn change(
        &self,
        queue: &QueueName,
        target: &Target,
        action: BulkAction,
    ) -> Result<Option<Timestamp>> {
        let path = path_of_job(queue, target);
        let request = match action {
            BulkAction::Reschedule(due) => {
                Request::new("PATCH", path, Some(json!({ "due": due_text(due) })))
            }
            BulkAction::Cancel => Request::new("DELETE", path, None),
            action => Request::post(format!("{path}:{}", action.as_str()), json!({})),
        };
        match action {
            BulkAction::Reschedule(_) => Ok(Some(self.send::<Moved>(request)?.due)),
            _ => self.send::<Value>(request).map(|_| None),
        }
    }

    pub(crate) fn count(
        &self,
        queue: &QueueName,
        action: BulkAction,
        filter: &JobFilter,
    ) -> Result<BulkCount> {
        let body = bulk_body(action, json!({ "filter": filter, "dry_run": true }));
        self.send(Request::query(path_of_bulk(queue, action), body))
    }

    /// With `expected`, changes nothing if more jobs match, or too many to count.
    pub(crate) fn bulk(
        &self,
        queue: &QueueName,
        action: BulkAction,
        filter: &JobFilter,
        expected: Option<u64>,
    ) -> Result<BulkReport> {
        let body = bulk_body(action, json!({ "filter": filter, "expected": expected }));
        self.send(Request::post(path_of_bulk(queue, action), body).takes_long())
    }

    pub(crate) fn schedule(
        &self,
        queue: &QueueName,
        body: Value,
        idempotency_key: Option<&str>,
    ) -> Result<ScheduledJob> {
        let request = Request::post(format!("{}/jobs", path_of(queue)), body);
        // Status 409 carries the running job with this key, which is an answer, not an error.
        self.send(request.idempotency_key(idempotency_key).has_body_if_running())
    }

    pub(crate) fn runners(&self) -> Result<Vec<RunnerSummary>> {
        self.get("runners")
    }

    pub(crate) fn check(&self) -> Result<Vec<FindingView>> {
        self.get("check")
    }

    /// Returns whether the queue was running before. Refuses an unused queue unless `create` is
    /// set.
    pub(crate) fn pause(&self, queue: &QueueName, create: bool) -> Result<bool> {
        let action = if create { "create-paused" } else { "pause" };
        Ok(self.act::<Changed>(format!("{}:{action}", path_of(queue)))?.changed)
    }

    /// Returns whether the queue was paused before.
    pub(crate) fn resume(&self, queue: &QueueName) -> Result<bool> {
        Ok(self.act::<Changed>(format!("{}:resume", path_of(queue)))?.changed)
    }

    /// Returns whether the limits were others before.
    pub(crate) fn limit(&self, queue: &QueueName, change: &LimitChange) -> Result<bool> {
        let request = Request::post(format!("{}:limit", path_of(queue)), json!(change));
        Ok(self.send::<Changed>(request)?.changed)
    }

    /// Returns whether an operator's limits counted before.
    pub(crate) fn unlimit(&self, queue: &QueueName) -> Result<bool> {
        Ok(self.act::<Changed>(format!("{}:unlimit", path_of(queue)))?.changed)
    }

    /// `typed` is the queue name the user typed to confirm.
    pub(crate) fn purge(&self, queue: &QueueName, typed: &str) -> Result<u64> {
        let path = format!("{}:purge", path_of(queue));
        let request = Request::post(path, json!({ "confirm": typed })).takes_long();
        Ok(self.send::<BulkReport>(request)?.changed)
    }

    pub(crate) fn schedules(&self) -> Result<Vec<ScheduleSummary>> {
        self.get("schedules")
    }

    pub(crate) fn recurring(&self, name: &str, next: usize) -> Result<ScheduleDetail> {
        self.get(format!("{}?next={next}", path_of_schedule(name)?))
    }

    /// Returns `false` if the store already had exactly this schedule.
    pub(crate) fn put_schedule(&self, name: &str, definition: &ScheduleDefinition) -> Result<bool> {
        let request = Request::new("PUT", path_of_schedule(name)?, Some(json!(definition)));
        Ok(self.send::<Changed>(request)?.changed)
    }

    /// Returns whether the schedule was running before.
    pub(crate) fn pause_schedule(&self, name: &str) -> Result<bool> {
        Ok(self.act::<Changed>(format!("{}:pause", path_of_schedule(name)?))?.changed)
    }

    /// Returns whether the schedule was paused before.
    pub(crate) fn resume_schedule(&self, name: &str) -> Result<bool> {
        Ok(self.act::<Changed>(format!("{}:resume", path_of_schedule(name)?))?.changed)
    }

    pub(crate) fn skip_next(&self, name: &str) -> Result<()> {
        self.act::<Value>(format!("{}:skip-next", path_of_schedule(name)?)).map(drop)
    }

    pub(crate) fn run_schedule(&self, name: &str) -> Result<ScheduledJob> {
        let path = format!("{}:run", path_of_schedule(name)?);
        // Status 409 carries the schedule's running job, which is an answer, not an error.
        self.send(Request::post(path, json!({})).has_body_if_running())
    }

    pub(crate) fn backfill(
        &self,
        name: &str,
        after: Timestamp,
        until: Timestamp,
    ) -> Result<BackfillReport> {
        let body = json!({ "after": after.to_string(), "until": until.to_string() });
        let path = format!("{}:backfill", path_of_schedule(name)?);
        self.send(Request::post(path, body).takes_long())
    }

    pub(crate) fn remove_schedule(&self, name: &str) -> Result<()> {
        self.send::<Value>(Request::new("DELETE", path_of_schedule(name)?, None)).map(drop)
    }

    pub(crate) fn forecasts(&self, window: Duration) -> Result<Forecasts> {
        let window = format_exact_duration(window);
        self.get(format!("forecast?window={}", encoded(&window)))
    }

    pub(crate) fn simulate(&self, request: &SimulationRequest) -> Result<SimulationView> {
        self.send(Request::query("simulate", json!(request)))
    }
}

fn encoded(text: &str) -> impl std::fmt::Display + '_ {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

/// A name within a path. Proxies change other characters, even percent-encoded.
fn name_in_path(prefix: &str, name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    match (name.bytes().all(is_plain), prefix) {
        (true, "") => name.to_owned(),
        (true, prefix) => format!("{prefix}:{name}"),
        (false, "") => format!("base64:{}", URL_SAFE_NO_PAD.encode(name)),
        (false, prefix) => format!("{prefix}-base64:{}", URL_SAFE_NO_PAD.encode(name)),
    }
}

fn path_of(queue: &QueueName) -> String {
    format!("queues/{}", name_in_path("", queue.as_str()))
}

fn path_of_bulk(queue: &QueueName, action: BulkAction) -> String {
    format!("{}/jobs:{}", path_of(queue), action.as_str())
}

fn path_of_job(queue: &QueueName, target: &Target) -> String {
    let job = match target {
        Target::Id(id) => id.to_string(),
        Target::Key(key) => name_in_path("key", key.as_str()),
    };
    format!("{}/jobs/{job}", path_of(queue))
}

fn path_of_schedule(name: &str) -> Result<String> {
    dq_core::ScheduleSpec::check_name(name)?;
    Ok(format!("schedules/{}", name_in_path("", name)))
}

fn bulk_body(action: BulkAction, mut body: Value) -> Value {
    if let BulkAction::Reschedule(due) = action {
        body["due"] = due_text(due).into();
    }
    body
}

pub(crate) fn due_text(due: Due) -> String {
    match due {
        Due::At(at) => at.to_string(),
        Due::After(delay) => format_exact_duration(delay),
    }
}

#[cfg(test)]
mod tests {
    use dq_ops::{parse_due, parse_queue, parse_target};

    use super::*;

    #[test]
    fn names_and_due_times_arrive_as_they_were() {
        for name in ["MAIL", "a/../b?c#d", "..", "base64:x", "é", "a:b"] {
            let queue = QueueName::new(name).unwrap();
            let path = path_of(&queue);
            assert!(!path["queues/".len()..].contains(['/', '?', '#', '%', '.']), "{path}");
            assert_eq!(parse_queue(&path["queues/".len()..]).unwrap(), queue);
            let target = parse_target(&format!("key:{name}")).unwrap();
            let path = path_of_job(&QueueName::new("Q").unwrap(), &target);
            assert_eq!(parse_target(&path["queues/Q/jobs/".len()..]).unwrap(), target);
        }
        for due in ["now", "15m", "1h 30m", "2027-01-31T10:00:00.005Z", "1d 1ms"] {
            let due = parse_due(due).unwrap();
            assert_eq!(parse_due(&due_text(due)).unwrap(), due);
        }
    }
}
