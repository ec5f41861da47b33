//! Byte buffers between a socket and a TLS session.

use std::cell::RefCell;

/// The size of a full buffer: four of the largest records of TLS 1.3 (RFC 8446 §5.2). Large enough for few system
/// calls, and above the largest accepted handshake message.
pub(super) const FULL_BYTES: usize = 4 * (16_384 + 256 + 5);

/// The number of full buffers that a thread keeps for reuse; others are freed.
const FREE_LIST_MAX: usize = 16;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A queue of bytes. Its memory is full-sized only during a read or write; at rest it is about the size of the
/// remaining bytes, and zero for none.
#[derive(Default)]
pub(super) struct Buffer {
    /// Always initialised to its length.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// Returns the room after the bytes, at least `room`; the memory becomes full-sized.
    pub(super) fn spare(&mut self, room: usize) -> &mut [u8] {
        if self.bytes.len() < FULL_BYTES {
            self.move_to(take());
        }
        if self.bytes.len() - self.end < room {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.bytes.len() - self.end < room {
                self.bytes.resize(self.end + room, 0);
            }
        }
        &mut self.bytes[self.end..]
    }

    /// Adds `n` bytes of the spare room to the queue.
    pub(super) fn grow(&mut self, n: usize) {
        debug_assert!(n <= self.bytes.len() - self.end, "grown beyond the buffer");
        self.end += n;
    }

    /// Removes `n` bytes from the front.
    pub(super) fn advance(&mut self, n: usize) {
        debug_assert!(n <= self.len(), "advanced beyond the bytes");
        self.start += n;
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Appends `bytes`.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.spare(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Frees memory if most of it is unused.
    pub(super) fn rest(&mut self) {
        if self.bytes.len() >= FULL_BYTES && self.len() <= self.bytes.len() / 2 {
            let kept = self.filled().to_vec();
            self.move_to(kept);
        }
    }

    /// Returns the memory in bytes.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    fn move_to(&mut self, mut bytes: Vec<u8>) {
        let len = self.len();
        bytes[..len].copy_from_slice(self.filled());
        let old = std::mem::replace(&mut self.bytes, bytes);
        (self.start, self.end) = (0, len);
        give(old);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        give(std::mem::take(&mut self.bytes));
    }
}

fn take() -> Vec<u8> {
    FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; FULL_BYTES])
}

fn give(bytes: Vec<u8>) {
    if bytes.len() != FULL_BYTES {
        return;
    }
    // At the end of a thread there is no list; then the memory is freed.
    let _ = FREE.try_with(|free| {
        let mut free = free.borrow_mut();
        if free.len() < FREE_LIST_MAX {
            free.push(bytes);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_its_bytes_and_only_the_memory_it_needs() {
        let mut buffer = Buffer::default();
        assert_eq!(buffer.bytes.capacity(), 0);
        buffer.extend(b"hello world");
        assert_eq!(buffer.bytes.len(), FULL_BYTES);
        buffer.advance(6);
        buffer.rest();
        assert_eq!((buffer.filled(), buffer.bytes.len()), (&b"world"[..], 5));
        buffer.extend(b"!");
        assert_eq!(buffer.filled(), b"world!");
        // It makes room beyond the full size, for a message larger than any buffer.
        assert!(buffer.spare(FULL_BYTES).len() >= FULL_BYTES);
        assert_eq!(buffer.filled(), b"world!");
        buffer.advance(6);
        buffer.rest();
        assert_eq!(buffer.bytes.capacity(), 0);
    }
}
