//! Configuration: backends, `dq.toml`, environment variables, queue and runner settings, schedules.

mod backend;
mod backoff;
pub mod duration;
mod history;
mod interpolate;
mod late;
mod layers;
mod load;
mod problem;
mod queue;
mod queue_limit;
mod schedule;
mod secret;
mod setting_error;
mod settings;
mod store;
mod typed;
mod url;
mod variables;

pub use backend::{
    BackendConfig, BackendRegistration, Environment, Migrated, backend_from_url, known_backends,
};
pub use backoff::BackoffSettings;
pub use late::{LateAction, LatePolicy};
pub use load::Config;
pub use queue::{QueuePolicy, QueueSettings};
pub use queue_limit::QueueLimit;
pub use schedule::ScheduleSettings;
pub(crate) use schedule::payload_json;
pub use secret::Secret;
pub use settings::{LimitSettings, RunnerSettings, ServeSettings, TokenSettings};
pub use store::{check_response_timeout, invalid_setting};
#[doc(hidden)]
pub use typed::RefusedSettings;
pub use typed::TypedSettings;
pub(crate) use typed::registration;
pub use url::{ConnectUrl, authority, host_and_port};
