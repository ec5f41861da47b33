//! A short text that usually needs no memory of its own.

use std::fmt;
use std::ops::Deref;

/// Bytes that fit into a [`Text`] next to its length.
const INLINE: usize = 22;

/// An immutable text of a tree node: most labels are so short that they lie in the node itself,
/// which saves a look-up a cache line for every node on its way.
#[derive(Clone)]
pub(super) struct Text(Storage);

#[derive(Clone)]
enum Storage {
    Inline { len: u8, bytes: [u8; INLINE] },
    Boxed(Box<[u8]>),
}

impl Text {
    /// `first` and behind it `second`.
    pub(super) fn of(first: &[u8], second: &[u8]) -> Text {
        let len = first.len() + second.len();
        if len > INLINE {
            return Text(Storage::Boxed([first, second].concat().into()));
        }
        let mut bytes = [0; INLINE];
        bytes[..first.len()].copy_from_slice(first);
        bytes[first.len()..len].copy_from_slice(second);
        // Checked above: it fits.
        Text(Storage::Inline { len: len as u8, bytes })
    }

    /// Returns the memory outside the text itself in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        match &self.0 {
            Storage::Inline { .. } => 0,
            Storage::Boxed(bytes) => bytes.len(),
        }
    }
}

impl Deref for Text {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Storage::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Storage::Boxed(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_short_and_long_texts() {
        assert_eq!(size_of::<Text>(), 24);
        for len in [0, 1, INLINE - 1, INLINE, INLINE + 1, 300] {
            let whole: Vec<u8> = (0..len).map(|n| n as u8).collect();
            for cut in [0, len / 2, len] {
                let text = Text::of(&whole[..cut], &whole[cut..]);
                assert_eq!(*text, *whole, "{len} {cut}");
                assert_eq!(text.heap_bytes() > 0, len > INLINE);
            }
        }
    }
}
