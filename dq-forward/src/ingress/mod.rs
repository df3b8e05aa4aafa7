//! The `[[ingress]]` types: messages from other systems become jobs.
//!
//! A message is acknowledged only when its job is stored, a live job has its key, or the message
//! was set aside. So a crash loses none.
//!
//! The job id is derived from the message id. The store remembers it after the job has ended (it
//! *pins* the id), so a redelivered message is not scheduled twice. A list element gets its job id
//! when it is taken, and keeps it in a second list. An AMQP message without an id becomes a new job
//! at each delivery.
//!
//! A message that cannot become a job is *unmappable*. It is logged and set aside: moved to another
//! queue, list or stream.

#[cfg(feature = "amqp")]
mod amqp;
mod mapping;
#[cfg(feature = "redis")]
mod redis_list;
#[cfg(feature = "redis")]
mod redis_stream;
mod settings;
mod target;

pub use settings::IngressSettings;

/// Marks a completed step. Tests kill the process here.
fn step(step: &'static str) {
    tracing::trace!(target: "dq_forward::ingress::step", step);
}
