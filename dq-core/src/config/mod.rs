//! Settings: which backend, which queues, how many at once.

mod backend;
pub mod duration;
mod load;
mod queue;
mod secret;
mod url;

pub use backend::{
    BackendConfig, BackendRegistration, Environment, backend_from_url, known_backends,
};
pub use load::{Config, LimitSettings, RunnerSettings};
pub use queue::{QueuePolicy, QueueSettings};
pub use secret::Secret;
pub use url::ConnectUrl;
