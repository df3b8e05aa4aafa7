//! A helper for mutexes.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose data stays valid if a thread panics while holding the lock.
///
/// Poisoning is ignored. Use it only if the data is consistent at every point of a critical section
/// that could panic.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
