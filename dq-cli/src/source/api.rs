//! Commands on a server, through its HTTP API.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use dq_core::{Due, QueueName, Target};
use dq_ops::{
    BulkAction, BulkCount, BulkReport, FindingView, JobDetail, JobFilter, JobPage, JobQuery, Moved,
    QueueSummary, RunnerSummary, ScheduleRequest, ScheduledJob, Timeline,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Source;
use super::http::{Api, Request};
use crate::failure::Result;

#[derive(Deserialize)]
pub(super) struct Changed {
    pub(super) changed: bool,
}

impl Api {
    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.send(Request::get(path))
    }
}

impl Source for Api {
    fn queues(&self) -> Result<Vec<QueueSummary>> {
        self.get("queues")
    }

    fn queue(&self, queue: &QueueName) -> Result<QueueSummary> {
        self.get(&path_of(queue))
    }

    fn jobs(&self, queue: &QueueName, query: &JobQuery) -> Result<JobPage> {
        let filter = &query.filter;
        let order = if query.descending { "desc" } else { "asc" };
        let mut parameters = vec![
            ("state", query.state.to_string()),
            ("limit", query.limit.to_string()),
            ("order", order.to_owned()),
        ];
        for (name, value) in [
            ("key_prefix", filter.key_prefix.clone()),
            ("due_from", filter.due_from.map(|at| at.to_string())),
            ("due_before", filter.due_before.map(|at| at.to_string())),
            ("error", filter.error.clone()),
            ("contains", query.contains.clone()),
            ("after", query.after.clone()),
        ] {
            parameters.extend(value.map(|value| (name, value)));
        }
        let parameters: Vec<String> = parameters
            .iter()
            .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)))
            .collect();
        self.get(&format!("{}/jobs?{}", path_of(queue), parameters.join("&")))
    }

    fn job(&self, queue: &QueueName, target: &Target) -> Result<JobDetail> {
        self.get(&path_of_job(queue, target))
    }

    fn timeline(&self, queue: &QueueName, target: &Target) -> Result<Timeline> {
        self.get(&format!("{}/timeline", path_of_job(queue, target)))
    }

    fn cancel(&self, queue: &QueueName, target: &Target) -> Result<()> {
        self.send::<Value>(Request::delete(path_of_job(queue, target))).map(drop)
    }

    fn reschedule(&self, queue: &QueueName, target: &Target, due: Due) -> Result<Moved> {
        let body = json!({ "due": text_of(due) });
        self.send(Request::patch(path_of_job(queue, target), body))
    }

    fn run_now(&self, queue: &QueueName, target: &Target) -> Result<Moved> {
        self.send(Request::post(format!("{}:run", path_of_job(queue, target)), json!({})))
    }

    fn replay(&self, queue: &QueueName, target: &Target) -> Result<()> {
        let path = format!("{}:replay", path_of_job(queue, target));
        self.send::<Value>(Request::post(path, json!({}))).map(drop)
    }

    fn remove(&self, queue: &QueueName, target: &Target) -> Result<()> {
        let path = format!("{}:remove", path_of_job(queue, target));
        self.send::<Value>(Request::post(path, json!({}))).map(drop)
    }

    fn count(
        &self,
        queue: &QueueName,
        action: BulkAction,
        filter: &JobFilter,
    ) -> Result<BulkCount> {
        let body = bulk_body(action, json!({ "filter": filter, "dry_run": true }));
        self.send(Request::query(path_of_bulk(queue, action), body).takes_long())
    }

    fn bulk(
        &self,
        queue: &QueueName,
        action: BulkAction,
        filter: &JobFilter,
        expected: Option<u64>,
    ) -> Result<BulkReport> {
        let body = bulk_body(action, json!({ "filter": filter, "expected": expected }));
        self.send(Request::post(path_of_bulk(queue, action), body).takes_long())
    }

    fn schedule(&self, queue: &QueueName, request: ScheduleRequest) -> Result<ScheduledJob> {
        let body = json!({
            // Base64 keeps the payload byte for byte.
            "payload_base64": STANDARD.encode(&request.payload),
            "content_type": request.content_type,
            "due": text_of(request.due),
            "key": request.key,
            "on_conflict": request.on_conflict,
            "on_running": request.on_running,
            "headers": request.headers,
            "max_attempts": request.max_attempts,
            "remember": request.remember,
        });
        let path = format!("{}/jobs", path_of(queue));
        let name = request.idempotency_key.as_deref();
        // Status 409 carries the running job with this key, which is an answer, not an error.
        self.send(Request::post(path, body).idempotency_key(name).has_body_if_running())
    }

    fn runners(&self) -> Result<Vec<RunnerSummary>> {
        self.get("runners")
    }

    fn check(&self) -> Result<Vec<FindingView>> {
        self.get("check")
    }

    fn pause(&self, queue: &QueueName, create: bool) -> Result<bool> {
        let action = if create { "create-paused" } else { "pause" };
        let path = format!("{}:{action}", path_of(queue));
        Ok(self.send::<Changed>(Request::post(path, json!({})))?.changed)
    }

    fn resume(&self, queue: &QueueName) -> Result<bool> {
        let path = format!("{}:resume", path_of(queue));
        Ok(self.send::<Changed>(Request::post(path, json!({})))?.changed)
    }

    fn purge(&self, queue: &QueueName, typed: &str) -> Result<u64> {
        let path = format!("{}:purge", path_of(queue));
        let report: BulkReport =
            self.send(Request::post(path, json!({ "confirm": typed })).takes_long())?;
        Ok(report.changed)
    }

    fn close(&self) -> dq_core::Result<()> {
        Ok(())
    }
}

fn path_of(queue: &QueueName) -> String {
    match is_plain(queue.as_str()) {
        true => format!("queues/{queue}"),
        false => format!("queues/base64:{}", URL_SAFE_NO_PAD.encode(queue.as_str())),
    }
}

fn path_of_bulk(queue: &QueueName, action: BulkAction) -> String {
    format!("{}/jobs:{}", path_of(queue), action.as_str())
}

fn bulk_body(action: BulkAction, mut body: Value) -> Value {
    if let BulkAction::Reschedule(due) = action {
        body["due"] = text_of(due).into();
    }
    body
}

fn path_of_job(queue: &QueueName, target: &Target) -> String {
    let job = match target {
        Target::Id(id) => id.to_string(),
        Target::Key(key) if is_plain(key.as_str()) => format!("key:{key}"),
        Target::Key(key) => format!("key-base64:{}", URL_SAFE_NO_PAD.encode(key.as_str())),
    };
    format!("{}/jobs/{job}", path_of(queue))
}

/// Whether a name is safe in a path. Proxies change other characters, even percent-encoded.
pub(super) fn is_plain(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    name.bytes().all(is_plain)
}

/// Formats a due time for the API.
fn text_of(due: Due) -> String {
    match due {
        Due::At(at) => at.to_string(),
        Due::After(delay) => humantime::format_duration(delay).to_string(),
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
            assert_eq!(parse_due(&text_of(due)).unwrap(), due);
        }
    }
}
