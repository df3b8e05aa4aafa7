//! Backends that fail on demand, and one that writes down what its clients saw.

mod layer;
mod recorder;
mod sleepy;

pub use layer::{Layer, Layered};
pub use recorder::Recorder;
pub use sleepy::Sleepy;
