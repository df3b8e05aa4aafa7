//! Configuration: backends by name and URL, `dq.toml` and environment variables, queue and runner
//! settings.

mod backend;
mod backoff;
pub mod duration;
mod interpolate;
mod layers;
mod load;
mod problem;
mod queue;
mod range_error;
mod secret;
mod settings;
mod url;
mod variables;

pub use backend::{
    BackendConfig, BackendRegistration, Environment, backend_from_url, known_backends,
};
pub use backoff::BackoffSettings;
pub use load::Config;
pub use queue::{QueuePolicy, QueueSettings};
pub use secret::Secret;
pub use settings::{LimitSettings, RunnerSettings};
pub use url::{ConnectUrl, host_and_port};
