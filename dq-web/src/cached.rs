//! A value that many requests share.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// Keeps a value for some time after it was read. The lock is held during a read, so concurrent
/// requests cause one.
#[derive(Debug)]
pub(crate) struct Cached<T> {
    age: Duration,
    last: Mutex<Option<(Instant, T)>>,
}

impl<T: Clone> Cached<T> {
    pub(crate) fn new(age: Duration) -> Self {
        Self { age, last: Mutex::new(None) }
    }

    pub(crate) async fn get(&self, read: impl Future<Output = T>) -> T {
        let mut last = self.last.lock().await;
        if let Some((at, value)) = &*last
            && at.elapsed() < self.age
        {
            return value.clone();
        }
        let value = read.await;
        *last = Some((Instant::now(), value.clone()));
        value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_requests_read_once_until_the_value_is_old() {
        let (cached, reads) = (Cached::new(Duration::from_secs(1)), AtomicU32::new(0));
        let get = || {
            cached.get(async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                reads.fetch_add(1, Ordering::Relaxed)
            })
        };
        assert_eq!(tokio::join!(get(), get()), (0, 0));
        tokio::time::advance(Duration::from_millis(990)).await;
        assert_eq!(get().await, 0);
        tokio::time::advance(Duration::from_millis(10)).await;
        assert_eq!(get().await, 1);
    }
}
