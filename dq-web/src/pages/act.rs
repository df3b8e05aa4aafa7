//! Form actions.

use axum::extract::Form;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use dq_core::{QueueName, Timestamp};
use dq_ops::{JobFilter, parse_due, parse_target};
use serde::Deserialize;

use super::bulk::action_of;
use super::chrome::{PageRequest, problem_page};
use super::limits;
use super::schedules;
use crate::api::input::unknown_action;
use crate::problem::Problem;

/// Actions on a queue or one job.
const ACTIONS: [&str; 10] = [
    "pause",
    "resume",
    "limit",
    "unlimit",
    "purge",
    "cancel",
    "run",
    "replay",
    "remove",
    "reschedule",
];

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Fields {
    /// The action, with prefix `bulk:` for bulk changes and `schedule:` for schedules.
    r#do: String,
    queue: String,
    job: String,
    due: Option<String>,
    confirm: String,
    /// Key prefix of the jobs to change.
    find: String,
    error: String,
    /// The job count the page showed; absent if it could not count all. Nothing changes if more
    /// match now.
    expected: Option<u64>,
    back: String,
    /// The schedule name.
    name: String,
    after: String,
    until: String,
    max_running: Option<String>,
    group_max_running: Option<String>,
    rate: Option<String>,
    /// The limits that the form has shown, by which changes are known.
    max_running_was: Option<String>,
    group_max_running_was: Option<String>,
    rate_was: Option<String>,
}

pub(super) async fn act(
    request: PageRequest,
    form: Result<Form<Fields>, axum::extract::rejection::FormRejection>,
) -> Response {
    let fields = match form {
        Ok(Form(fields)) => fields,
        Err(error) => {
            return problem_page(&request.at(""), Problem::bad_request(error.body_text()), None);
        }
    };
    let back = is_page(&fields.back).then(|| fields.back.clone());
    // `act` cannot be opened again, so language and links come from the form's page.
    let request = request.at(back.as_deref().unwrap_or_default());
    match change(&request, &fields).await {
        Ok(done) => {
            let back = back.unwrap_or_else(|| request.chrome("", Timestamp::EPOCH).page(""));
            let separator = if back.contains('?') { '&' } else { '?' };
            let location = format!("{back}{separator}done={done}");
            (StatusCode::SEE_OTHER, [(LOCATION, location)]).into_response()
        }
        Err(error) => problem_page(&request, error, back),
    }
}

/// Applies the form; returns the action name.
async fn change(request: &PageRequest, fields: &Fields) -> Result<&'static str, Problem> {
    let session = &request.session;
    if let Some(action) = fields.r#do.strip_prefix("schedule:") {
        let Fields { name, after, until, .. } = fields;
        return schedules::change(session, action, name, after, until).await;
    }
    let queue = QueueName::new(&fields.queue)?;
    if let Some(name) = fields.r#do.strip_prefix("bulk:") {
        // `action_of` reads `None` as "now", for the counting page, which has no due time yet. Here
        // that makes all jobs due at once. An empty text is refused instead.
        let action = action_of(name, Some(fields.due.as_deref().unwrap_or_default()))?;
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let mut filter = JobFilter::default();
        filter.key_prefix = text(&fields.find);
        filter.error = text(&fields.error);
        // As in the API: a hand-written form must not take every job by mistake.
        if filter.is_empty() && fields.expected.is_none() {
            return Err(Problem::bad_request("the form selects no jobs")
                .remedy("give a filter, or the number that was counted as `expected`"));
        }
        session.bulk(&queue, action, &filter, fields.expected).await?;
        return Ok("bulk");
    }
    let job = || parse_target(&fields.job);
    Ok(match fields.r#do.as_str() {
        "pause" => session.pause(&queue).await.map(|_| "pause")?,
        "resume" => session.resume(&queue).await.map(|_| "resume")?,
        "limit" => {
            let changed =
                |now: &Option<String>, was: &Option<String>| now.clone().filter(|_| now != was);
            let max_running = changed(&fields.max_running, &fields.max_running_was);
            let group_max_running =
                changed(&fields.group_max_running, &fields.group_max_running_was);
            let rate = changed(&fields.rate, &fields.rate_was);
            let change = limits::change_of(
                max_running.as_deref(),
                group_max_running.as_deref(),
                rate.as_deref(),
            )?;
            session.limit(&queue, change).await.map(|_| "limit")?
        }
        "unlimit" => session.unlimit(&queue).await.map(|_| "unlimit")?,
        "purge" => session.purge(&queue, &fields.confirm).await.map(|_| "purge")?,
        "cancel" => session.cancel(&queue, &job()?).await.map(|()| "cancel")?,
        "run" => session.run_now(&queue, &job()?).await.map(|_| "run")?,
        "replay" => session.replay(&queue, &job()?).await.map(|()| "replay")?,
        "remove" => session.remove(&queue, &job()?).await.map(|()| "remove")?,
        "reschedule" => {
            let due = parse_due(fields.due.as_deref().unwrap_or_default())?;
            session.reschedule(&queue, &job()?, due).await.map(|_| "reschedule")?
        }
        other => return Err(unknown_action(other, &ACTIONS)),
    })
}

/// Whether an address is a page of the dashboard, such as `jobs?queue=MAIL`, and no other site.
fn is_page(address: &str) -> bool {
    let page = address.split('?').next().unwrap_or_default();
    let is_name = !page.is_empty() && page.bytes().all(|byte| byte.is_ascii_lowercase());
    (is_name || page == "./") && !address.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::is_page;

    #[test]
    fn forms_lead_back_to_pages_of_the_dashboard_only() {
        for page in ["./", "./?lang=zh", "jobs?queue=a%2Fb&state=dead", "queue?name=x"] {
            assert!(is_page(page), "{page}");
        }
        for other in
            ["", "//evil.example", "https://evil.example", "jobs/../x", "jobs?\r\nx", "/", "?x"]
        {
            assert!(!is_page(other), "{other}");
        }
    }
}
