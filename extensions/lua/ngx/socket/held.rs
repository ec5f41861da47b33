//! Bytes that the sockets of one worker hold outside Lua's memory, with one limit for all.

use std::cell::Cell;
use std::rc::Rc;

/// The sum of held bytes.
#[derive(Clone)]
pub(super) struct HeldBytes {
    sum: Rc<Cell<usize>>,
    most: usize,
}

/// The error where the limit is reached.
pub(super) const TOO_MANY: &str = "sockets of scripts hold too many bytes";

impl HeldBytes {
    pub(super) fn new(most: usize) -> HeldBytes {
        HeldBytes { sum: Rc::default(), most }
    }

    /// Whether so many bytes more are within the limit; they count then.
    fn add(&self, bytes: usize) -> bool {
        let sum = self.sum.get().saturating_add(bytes);
        let is_within = sum <= self.most;
        if is_within {
            self.sum.set(sum);
        }
        is_within
    }

    fn remove(&self, bytes: usize) {
        self.sum.set(self.sum.get().saturating_sub(bytes));
    }

    /// Room for bytes that arrive.
    pub(super) fn nothing(&self) -> SocketBytes {
        SocketBytes { bytes: Vec::new(), of: self.clone() }
    }

    /// Holds bytes to send; None over the limit.
    pub(super) fn hold(&self, bytes: Vec<u8>) -> Option<SocketBytes> {
        self.add(bytes.len()).then(|| SocketBytes { bytes, of: self.clone() })
    }
}

/// Bytes that count.
pub(super) struct SocketBytes {
    bytes: Vec<u8>,
    of: HeldBytes,
}

impl SocketBytes {
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Appends bytes; false over the limit.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        let is_within = self.of.add(bytes.len());
        if is_within {
            self.bytes.extend_from_slice(bytes);
        }
        is_within
    }

    /// Takes the first `used` bytes out and returns the first `taken` of them.
    pub(super) fn cut(&mut self, taken: usize, used: usize) -> Vec<u8> {
        let rest = self.bytes.split_off(used);
        let mut cut = std::mem::replace(&mut self.bytes, rest);
        self.of.remove(cut.len());
        cut.truncate(taken);
        cut
    }

    /// Takes all bytes out.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.of.remove(self.bytes.len());
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for SocketBytes {
    fn drop(&mut self) {
        self.of.remove(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_bytes_have_one_limit() {
        let held = HeldBytes::new(10);
        let (mut one, two) = (held.nothing(), held.hold(vec![0; 6]).unwrap());
        assert!(one.push(b"abcd") && !one.push(b"e") && held.hold(vec![0]).is_none());
        assert_eq!(one.cut(1, 3), b"a");
        assert_eq!((one.as_slice(), held.sum.get()), (&b"d"[..], 7));
        drop(two);
        assert_eq!((one.take(), held.sum.get()), (b"d".to_vec(), 0));
    }
}
