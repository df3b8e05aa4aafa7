//! Allowed methods where a resource and its actions share a route.

use axum::http::Method;
use dq_ops::{parse_queue, parse_schedule, parse_target};
use percent_encoding::percent_decode_str;

use super::{jobs, queues, schedules};

/// A resource with actions, such as `/v1/queues/MAIL`, or an action, such as
/// `/v1/queues/MAIL:pause`. The router has one route for both.
pub(crate) struct Address {
    pub(crate) allow: &'static str,
    pub(crate) actions: &'static [&'static str],
    is_action: bool,
    /// Whether the whole segment can also be a name.
    is_name: bool,
}

impl Address {
    /// Returns `None` for other addresses.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let segments: Vec<&str> = path.strip_prefix("/v1/")?.split('/').collect();
        let decoded = |segment| percent_decode_str(segment).decode_utf8_lossy();
        let (name, is_name, methods, actions) = match segments[..] {
            ["queues", queue] => {
                let name = decoded(queue);
                let is_name = parse_queue(&name).is_ok();
                (name, is_name, "GET,HEAD", queues::ACTIONS)
            }
            ["queues", _, "jobs", job] => {
                let name = decoded(job);
                let is_name = parse_target(&name).is_ok();
                (name, is_name, "GET,HEAD,PATCH,DELETE", jobs::ACTIONS)
            }
            ["schedules", schedule] => {
                let name = decoded(schedule);
                let is_name = parse_schedule(&name).is_ok();
                (name, is_name, "GET,HEAD,PUT,DELETE", schedules::ACTIONS)
            }
            _ => return None,
        };
        let is_action = name.rsplit_once(':').is_some_and(|(_, action)| actions.contains(&action));
        let allow = if is_action { "POST" } else { methods };
        Some(Self { allow, actions, is_action, is_name })
    }

    /// Whether the method does not fit the address. A name can end like an action, such as the job
    /// `key:nightly:run`, so reading one is allowed.
    pub(crate) fn refuses(&self, method: &Method) -> bool {
        match *method {
            Method::POST => !self.is_action,
            _ => self.is_action && !self.is_name,
        }
    }
}
