//! Locking.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A panic while one of these locks is held leaves a whole value behind, so poisoning is ignored.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
