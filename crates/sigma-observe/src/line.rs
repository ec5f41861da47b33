//! Memory for lines, optimized for copies of short values.

/// A byte sink.
pub trait Put {
    /// Appends `bytes`.
    fn put(&mut self, bytes: &[u8]);

    /// Appends the first `len` of `bytes`, which has at least that many. `len` is at most [`MARGIN`].
    fn put_some<const N: usize>(&mut self, bytes: &[u8; N], len: usize);
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn put_some<const N: usize>(&mut self, bytes: &[u8; N], len: usize) {
        self.extend_from_slice(&bytes[..len]);
    }
}

/// Bytes after the end that may be overwritten, so that short values are copied in whole registers, without a loop or
/// a call.
pub const MARGIN: usize = 32;

/// Lines under construction.
#[derive(Debug, Default)]
pub struct Line {
    /// All initialised; the content ends at `len`, and a margin follows.
    bytes: Vec<u8>,
    len: usize,
}

impl Line {
    /// Returns a line on reused memory, with any content.
    pub(crate) fn again(bytes: Vec<u8>) -> Line {
        Line { bytes, len: 0 }
    }

    /// Reserves room for this number of bytes altogether.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        if self.bytes.len() < bytes + MARGIN {
            self.bytes.resize(bytes + MARGIN, 0);
        }
    }

    /// Returns the size of its memory.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns the content.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the length of the content.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if it has no content.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Cuts the content to its first `len` bytes.
    #[inline]
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Takes the content out.
    pub fn take(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.truncate(std::mem::take(&mut self.len));
        bytes
    }

    /// Lets `change` replace the content after the first `from` bytes. The content before stays untouched: a block of
    /// lines is many times as long as a value.
    #[cold]
    pub(crate) fn change(&mut self, from: usize, change: impl FnOnce(&mut Vec<u8>)) {
        let mut text = self.bytes[from..self.len].to_vec();
        change(&mut text);
        self.len = from;
        self.put(&text);
    }

    /// Returns the bytes from `from` on, in words; spaces fill the last one.
    pub(crate) fn words(&self, from: usize) -> impl Iterator<Item = u64> {
        let len = self.len.saturating_sub(from);
        // The margin has the rest of the last word.
        let words = self.bytes[from..].as_chunks::<8>().0.iter().take(len.div_ceil(8));
        words.enumerate().map(move |(n, word)| {
            let word = u64::from_le_bytes(*word);
            match len - 8 * n {
                8.. => word,
                left => word & !(u64::MAX << (8 * left)) | 0x2020_2020_2020_2020 << (8 * left),
            }
        })
    }

    /// Appends a byte.
    #[inline(always)]
    pub fn push(&mut self, byte: u8) {
        self.put_some(&[byte], 1);
    }

    /// Returns the memory after the content: at least `len` bytes and a margin.
    #[inline(always)]
    fn room(&mut self, len: usize) -> &mut [u8] {
        if self.bytes.len() - self.len < len + MARGIN {
            self.grow(len);
        }
        &mut self.bytes[self.len..]
    }

    #[cold]
    fn grow(&mut self, len: usize) {
        self.reserve((self.len + len).max(2 * self.bytes.len()));
    }
}

impl Put for Line {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let len = bytes.len();
        let room = self.room(len);
        // Two overlapping copies cover every length.
        match (len, bytes) {
            (8..=16, _) => put_ends::<8>(room, bytes),
            (17..=32, _) => put_ends::<16>(room, bytes),
            (4..=7, _) => put_ends::<4>(room, bytes),
            (0..=3, [first, .., last]) => {
                room[0] = *first;
                room[len / 2] = bytes[len / 2];
                room[len - 1] = *last;
            }
            (0..=3, [only]) => room[0] = *only,
            (0..=3, _) => {}
            _ => room[..len].copy_from_slice(bytes),
        }
        self.len += len;
    }

    #[inline(always)]
    fn put_some<const N: usize>(&mut self, bytes: &[u8; N], len: usize) {
        const { assert!(N <= MARGIN) };
        debug_assert!(len <= N);
        if let Some(to) = self.room(0).first_chunk_mut() {
            *to = *bytes;
        }
        self.len += len;
    }
}

/// Copies the first and the last `N` of `N` to `2 * N` bytes. Arrays are copied in registers, without a call.
#[inline(always)]
fn put_ends<const N: usize>(to: &mut [u8], bytes: &[u8]) {
    let at = bytes.len() - N;
    let (Some(first), Some(last)) = (bytes.first_chunk::<N>(), bytes.last_chunk::<N>()) else { return };
    if let Some(begin) = to.first_chunk_mut::<N>() {
        *begin = *first;
    }
    if let Some(end) = to[at..].first_chunk_mut::<N>() {
        *end = *last;
    }
}

/// A text of a format. Most are shorter than the margin, and are copied as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Literal {
    start: [u8; MARGIN],
    start_len: usize,
    rest: Box<[u8]>,
}

impl Literal {
    pub(crate) fn new(text: &[u8]) -> Literal {
        let start_len = text.len().min(MARGIN);
        let mut start = [0; MARGIN];
        start[..start_len].copy_from_slice(&text[..start_len]);
        Literal { start, start_len, rest: text[start_len..].into() }
    }

    #[inline]
    pub(crate) fn put(&self, line: &mut Line) {
        line.put_some(&self.start, self.start_len);
        if !self.rest.is_empty() {
            line.put(&self.rest);
        }
    }
}

/// Appends a number in decimal digits.
#[inline]
pub fn put_number(number: u64, out: &mut impl Put) {
    match number {
        0..1000 => put_below_1000(number, out),
        1000..1_000_000 => {
            put_below_1000(number / 1000, out);
            out.put_some(&digits(number).to_le_bytes(), 3);
        }
        _ => out.put(itoa::Buffer::new().format(number).as_bytes()),
    }
}

#[inline]
fn put_below_1000(number: u64, out: &mut impl Put) {
    let zeros = usize::from(number < 100) + usize::from(number < 10);
    out.put_some(&(digits(number) >> (8 * zeros)).to_le_bytes(), 3 - zeros);
}

/// Appends milliseconds as seconds with three decimals, as nginx prints times.
#[inline]
pub fn put_seconds(ms: f64, out: &mut impl Put) {
    let ms = nearest_ms(ms);
    let (seconds, decimals) = (ms / 1000, u64::from(digits(ms)) << 8 | u64::from(b'.'));
    match seconds {
        // Composed in a register: bytes stored one by one cannot be loaded as a word soon after.
        0..10 => out.put_some(&(decimals << 8 | (u64::from(b'0') + seconds)).to_le_bytes(), 5),
        _ => {
            put_number(seconds, out);
            out.put_some(&decimals.to_le_bytes(), 4);
        }
    }
}

/// Returns the nearest whole number of milliseconds.
#[inline]
pub(crate) fn nearest_ms(ms: f64) -> u64 {
    (ms + 0.5) as u64
}

/// Returns the last three digits of a number as text: the first one in the lowest byte.
#[inline]
fn digits(number: u64) -> u32 {
    u32::from_le_bytes(DIGITS[(number % 1000) as usize])
}

/// The three digits of each number below a thousand.
static DIGITS: [[u8; 4]; 1000] = {
    let mut digits = [[0; 4]; 1000];
    let mut n = 0;
    while n < 1000 {
        digits[n] = [b'0' + (n / 100) as u8, b'0' + (n / 10 % 10) as u8, b'0' + (n % 10) as u8, 0];
        n += 1;
    }
    digits
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_each_length_are_appended() {
        let all: Vec<u8> = (0..=255).collect();
        for before in [0, 1, 31, 4096] {
            let mut line = Line::default();
            let mut expected = vec![b'.'; before];
            line.put(&expected);
            for len in 0..=100 {
                line.put(&all[..len]);
                expected.extend_from_slice(&all[..len]);
                assert_eq!(line.as_bytes(), expected, "{before} {len}");
                line.push(b'|');
                line.put_some(b"abcd", len % 5);
                Literal::new(&all[..len]).put(&mut line);
                expected.push(b'|');
                expected.extend_from_slice(&b"abcd"[..len % 5]);
                expected.extend_from_slice(&all[..len]);
                assert_eq!((line.as_bytes(), line.len()), (&expected[..], expected.len()), "{before} {len}");
            }
        }
    }

    #[test]
    fn words_end_with_the_content() {
        let mut line = Line::default();
        line.put(&[0xff; 64]);
        line.truncate(3);
        for len in 0..20 {
            line.truncate(3);
            line.put(&b"abcdefghijklmnopqrstuvwxyz"[..len]);
            let words: Vec<u8> = line.words(3).flat_map(u64::to_le_bytes).collect();
            let mut expected = line.as_bytes()[3..].to_vec();
            expected.resize(len.next_multiple_of(8), b' ');
            assert_eq!(words, expected, "{len}");
        }
    }

    #[test]
    fn memory_is_reused() {
        let mut line = Line::again(vec![7; 100]);
        assert!(line.is_empty());
        line.put(b"one");
        line.change(3, |bytes| bytes.extend_from_slice(b" two"));
        line.change(4, |bytes| bytes.make_ascii_uppercase());
        line.put(b" three");
        assert_eq!(line.take(), b"one TWO three");
        assert!(line.is_empty() && line.as_bytes().is_empty());
    }

    #[test]
    fn numbers_match_the_standard_library() {
        for number in (0..2_000).chain([9_999, 10_000, 65_535, 100_007, 999_999, 1_000_000, u64::MAX]) {
            let mut out = Vec::new();
            put_number(number, &mut out);
            assert_eq!(out, number.to_string().as_bytes());
        }
    }

    #[test]
    fn times_are_seconds_with_milliseconds() {
        for ms in [0.0, 0.4, 0.6, 1.0, 12.3, 999.4, 999.6, 1_000.0, 9_999.9, 61_234.567, 1e9] {
            let mut out = Vec::new();
            put_seconds(ms, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), format!("{:.3}", ms / 1000.0));
        }
    }
}
