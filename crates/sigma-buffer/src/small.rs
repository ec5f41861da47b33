//! Growable buffers for short texts, recycled by their thread.

use std::cell::RefCell;

/// The number of buffers that a thread keeps for reuse.
const FREE_LIST_MAX: usize = 64;

/// The largest buffer that is kept for reuse.
const KEPT_BYTES_MAX: usize = 16 * 1024;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Returns an empty buffer with some room.
#[inline]
pub fn take() -> Vec<u8> {
    FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| Vec::with_capacity(1024))
}

/// Takes a buffer of [`take`] back.
#[inline]
pub fn recycle(mut bytes: Vec<u8>) {
    if bytes.capacity() > KEPT_BYTES_MAX {
        return;
    }
    bytes.clear();
    FREE.with_borrow_mut(|free| {
        if free.len() < FREE_LIST_MAX {
            free.push(bytes);
        }
    });
}
