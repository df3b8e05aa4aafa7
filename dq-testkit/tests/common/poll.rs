//! Polls a future step by step, so that a test can stop or interrupt a call between two steps.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Returns the output if the future is ready within `times` polls.
pub(crate) fn poll_times<T>(
    future: &mut Pin<Box<dyn Future<Output = T> + Send + '_>>,
    times: usize,
) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    (0..times).find_map(|_| match future.as_mut().poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    })
}
