//! Takes plain messages of other systems and schedules them as jobs: the types of `[[ingress]]`.
//!
//! A message is acknowledged only when its job is stored, a live job has its key, or it was set aside, so a
//! crash loses none. The id of a job is made from the id of its message, and pinned, so that a message
//! that is delivered again is not scheduled twice. An element of a list gets a job id when it is taken,
//! and keeps it in the second list. An AMQP message without an id becomes a job at each delivery. Messages
//! that cannot be mapped are moved to a queue, list or stream of their own, and logged.

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

/// Reports what was done just now. Tests kill the process here.
fn step(step: &'static str) {
    tracing::trace!(target: "dq_forward::ingress::step", step);
}
