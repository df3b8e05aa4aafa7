//! [`Recurring`] on a store and on a server.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dq_core::Timestamp;
use dq_ops::{
    BackfillReport, Forecasts, RecurringDefinition, RecurringDetail, RecurringSummary,
    ScheduledJob, SimulationRequest, SimulationView,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::Recurring;
use super::api::{Changed, is_plain};
use super::http::{Api, Request};
use super::store::StoreSource;
use crate::failure::{Failure, Result};

impl Recurring for StoreSource {
    fn schedules(&self) -> Result<Vec<RecurringSummary>> {
        self.wait(self.session.schedules())
    }

    fn recurring(&self, name: &str, next: usize) -> Result<RecurringDetail> {
        self.wait(self.session.recurring(name, next))
    }

    fn put_schedule(&self, name: &str, definition: &RecurringDefinition) -> Result<bool> {
        self.wait(self.session.put_schedule(name, definition))
    }

    fn pause_schedule(&self, name: &str) -> Result<bool> {
        self.wait(self.session.pause_schedule(name))
    }

    fn resume_schedule(&self, name: &str) -> Result<bool> {
        self.wait(self.session.resume_schedule(name))
    }

    fn skip_next(&self, name: &str) -> Result<()> {
        self.wait(self.session.skip_next(name))
    }

    fn run_schedule(&self, name: &str) -> Result<ScheduledJob> {
        self.wait(self.session.run_schedule(name))
    }

    fn backfill(&self, name: &str, after: Timestamp, until: Timestamp) -> Result<BackfillReport> {
        self.wait(self.session.backfill(name, after, until))
    }

    fn remove_schedule(&self, name: &str) -> Result<()> {
        self.wait(self.session.remove_schedule(name))
    }

    fn forecasts(&self, window: Duration) -> Result<Forecasts> {
        self.wait(self.session.forecasts(window))
    }

    fn simulate(&self, request: &SimulationRequest) -> Result<SimulationView> {
        self.wait(self.session.simulate(request))
    }
}

impl Recurring for Api {
    fn schedules(&self) -> Result<Vec<RecurringSummary>> {
        self.get("schedules")
    }

    fn recurring(&self, name: &str, next: usize) -> Result<RecurringDetail> {
        self.get(&format!("{}?next={next}", path_of(name)?))
    }

    fn put_schedule(&self, name: &str, definition: &RecurringDefinition) -> Result<bool> {
        let body = json!(definition);
        let path = path_of(name)?;
        let stored: Changed = self.send(Request::put(path, body))?;
        Ok(stored.changed)
    }

    fn pause_schedule(&self, name: &str) -> Result<bool> {
        let path = format!("{}:pause", path_of(name)?);
        Ok(self.send::<Changed>(Request::post(path, json!({})))?.changed)
    }

    fn resume_schedule(&self, name: &str) -> Result<bool> {
        let path = format!("{}:resume", path_of(name)?);
        Ok(self.send::<Changed>(Request::post(path, json!({})))?.changed)
    }

    fn skip_next(&self, name: &str) -> Result<()> {
        let path = format!("{}:skip-next", path_of(name)?);
        self.send::<Value>(Request::post(path, json!({}))).map(drop)
    }

    fn run_schedule(&self, name: &str) -> Result<ScheduledJob> {
        let path = format!("{}:run", path_of(name)?);
        // Status 409 carries the schedule's running job, which is an answer, not an error.
        self.send(Request::post(path, json!({})).has_body_if_running())
    }

    fn backfill(&self, name: &str, after: Timestamp, until: Timestamp) -> Result<BackfillReport> {
        let body = json!({ "after": after.to_string(), "until": until.to_string() });
        let path = format!("{}:backfill", path_of(name)?);
        self.send(Request::post(path, body).takes_long())
    }

    fn remove_schedule(&self, name: &str) -> Result<()> {
        self.send::<Value>(Request::delete(path_of(name)?)).map(drop)
    }

    fn forecasts(&self, window: Duration) -> Result<Forecasts> {
        let window = humantime::format_duration(window).to_string();
        self.get(&format!("forecast?window={}", utf8_percent_encode(&window, NON_ALPHANUMERIC)))
    }

    fn simulate(&self, request: &SimulationRequest) -> Result<SimulationView> {
        self.send(Request::query("simulate", json!(request)).takes_long())
    }
}

fn path_of(name: &str) -> Result<String> {
    dq_core::ScheduleSpec::check_name(name).map_err(Failure::from)?;
    Ok(match is_plain(name) {
        true => format!("schedules/{name}"),
        false => format!("schedules/base64:{}", URL_SAFE_NO_PAD.encode(name)),
    })
}
