//! The formats of Redisson's delayed queue: packed members and payload codecs.

mod codec;
#[cfg(test)]
mod golden;
pub(crate) mod member;

pub use codec::Codec;
pub use member::Format;
