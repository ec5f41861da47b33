//! Locking.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A panic under one of these locks leaves a valid value, so poisoning is ignored.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
