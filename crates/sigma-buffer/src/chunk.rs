//! Owned pieces of a stream, on recycled memory.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The default size of a new buffer; [`set_size`] changes it. Large enough for a 1 MiB body in few reads, small
/// enough to stay in the second-level cache on its way between two sockets.
pub const CHUNK_BYTES: usize = 64 * 1024;

/// The number of buffers that a thread keeps for reuse; others are freed, so that a burst leaves no memory.
const FREE_LIST_MAX: usize = 64;

/// The size of a buffer for a small copy, which must not take the memory of a read.
const SMALL_BYTES: usize = 2 * 1024;

/// The number of small buffers that a thread keeps for reuse.
const SMALL_FREE_LIST_MAX: usize = 256;

/// The least room of a shrunk chunk: enough for most heads.
const LEAST_SHRUNK_BYTES: usize = 1024;

thread_local! {
    static FREE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
    static SMALL_FREE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
    static SIZE: Cell<usize> = const { Cell::new(CHUNK_BYTES) };
}

/// Sets the size of new buffers of this thread; at least 4 KiB, so that no setting makes reads inefficient.
pub fn set_size(bytes: usize) {
    SIZE.set(bytes.max(4 * 1024));
    FREE.with_borrow_mut(Vec::clear);
}

fn zeroed(len: usize) -> Box<[u8]> {
    vec![0; len].into_boxed_slice()
}

/// The memory of a chunk.
enum Memory {
    /// Its own
    Own(Box<[u8]>),
    /// Shared and read-only
    Shared(Arc<[u8]>),
    /// Shared and read-only, of another owner
    Foreign(Arc<dyn AsRef<[u8]> + Send + Sync>),
}

impl Memory {
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Own(bytes) => bytes,
            Memory::Shared(bytes) => bytes,
            Memory::Foreign(owner) => of_owner(&**owner),
        }
    }

    /// Returns the writable memory; empty if it is shared.
    #[inline]
    fn own(&mut self) -> &mut [u8] {
        match self {
            Memory::Own(bytes) => bytes,
            Memory::Shared(_) | Memory::Foreign(_) => &mut [],
        }
    }
}

/// Out of the way of the usual memory, which is read in many places.
#[cold]
fn of_owner(owner: &(dyn AsRef<[u8]> + Send + Sync)) -> &[u8] {
    owner.as_ref()
}

impl Default for Memory {
    #[inline]
    fn default() -> Memory {
        Memory::Own(Box::default())
    }
}

/// A piece of bytes: a window into a recycled buffer, or into shared memory.
///
/// Derefs to the window. [`Chunk::spare`] is the room after it, to read into; shared memory lacks it, and a change of
/// a shared window makes a copy.
#[derive(Default)]
pub struct Chunk {
    memory: Memory,
    // Four bytes each, since every connection has several chunks: none has 4 GiB.
    start: u32,
    end: u32,
}

/// Converts a position in a chunk.
///
/// # Panics
/// Panics beyond 4 GiB: a reader of that much at once has no limit.
#[inline]
fn place(at: usize) -> u32 {
    u32::try_from(at).expect("a chunk has less than 4 GiB")
}

impl Chunk {
    /// Returns an empty chunk without memory.
    #[inline]
    pub fn empty() -> Chunk {
        Chunk::default()
    }

    /// Returns an empty chunk of this thread's buffer size, from the free list if it has one.
    #[inline]
    pub fn take() -> Chunk {
        Chunk::of(FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| zeroed(SIZE.get())))
    }

    /// Returns an empty chunk of 2 KiB, from the free list if it has one.
    pub fn take_small() -> Chunk {
        Chunk::of(SMALL_FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| zeroed(SMALL_BYTES)))
    }

    /// Returns an empty chunk on this memory.
    #[inline]
    fn of(bytes: Box<[u8]>) -> Chunk {
        Chunk { memory: Memory::Own(bytes), start: 0, end: 0 }
    }

    /// Returns a window into shared memory, without a copy.
    ///
    /// # Panics
    /// Panics if the window exceeds the memory.
    pub fn shared(memory: Arc<[u8]>, window: std::ops::Range<usize>) -> Chunk {
        assert!(window.start <= window.end && window.end <= memory.len(), "a window beyond the memory");
        Chunk { memory: Memory::Shared(memory), start: place(window.start), end: place(window.end) }
    }

    /// As [`Chunk::shared`], for memory of any owner, whose bytes never change.
    ///
    /// # Panics
    /// Panics if the window exceeds the memory.
    pub fn foreign(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, window: std::ops::Range<usize>) -> Chunk {
        let len = (*owner).as_ref().len();
        assert!(window.start <= window.end && window.end <= len, "a window beyond the memory");
        Chunk { memory: Memory::Foreign(owner), start: place(window.start), end: place(window.end) }
    }

    /// Returns a chunk with the next piece of `bytes` after `taken`; None at their end.
    pub fn next_of(bytes: &[u8], taken: &mut usize) -> Option<Chunk> {
        /// The largest piece: a socket takes it at once, and it is little to hold for a slow peer.
        const PIECE_BYTES: usize = 16 * 1024;
        let rest = bytes.get(*taken..).filter(|rest| !rest.is_empty())?;
        let piece = Chunk::copy_of(&rest[..rest.len().min(PIECE_BYTES)]);
        *taken += piece.len();
        Some(piece)
    }

    /// Returns a chunk with a copy of `data`, in memory that fits.
    pub fn copy_of(data: &[u8]) -> Chunk {
        let mut chunk = match data.len() {
            0 => return Chunk::empty(),
            1..=SMALL_BYTES => Chunk::take_small(),
            len if len <= SIZE.get() => Chunk::take(),
            len => Chunk::of(zeroed(len)),
        };
        chunk.memory.own()[..data.len()].copy_from_slice(data);
        chunk.end = place(data.len());
        chunk
    }

    /// Returns the room after the window.
    #[inline]
    pub fn spare(&mut self) -> &mut [u8] {
        self.memory.own().get_mut(self.end as usize..).unwrap_or_default()
    }

    /// Adds `n` bytes of the spare room to the window.
    ///
    /// # Panics
    /// Panics if `n` exceeds the spare room.
    #[inline]
    pub fn filled(&mut self, n: usize) {
        assert!(n <= self.memory.own().len().saturating_sub(self.end as usize), "filled beyond the buffer");
        self.end += place(n);
    }

    /// Appends `data` if all of it fits after the window; returns true if it does.
    #[inline]
    pub fn try_append(&mut self, data: &[u8]) -> bool {
        match self.spare().get_mut(..data.len()) {
            Some(room) => {
                room.copy_from_slice(data);
                self.end += place(data.len());
                true
            }
            None => false,
        }
    }

    /// Removes `n` bytes from the front of the window; an empty chunk gives its memory back.
    ///
    /// # Panics
    /// Panics if the window is shorter than `n`.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.len(), "advanced beyond the window");
        self.start += place(n);
        if self.start == self.end {
            *self = Chunk::empty();
        }
    }

    /// Cuts the window to its first `n` bytes.
    #[inline]
    pub fn truncate(&mut self, n: usize) {
        self.end = self.start + place(n.min(self.len()));
    }

    /// Splits off the first `n` bytes; copies the shorter side.
    pub fn split_to(&mut self, n: usize) -> Chunk {
        if n >= self.len() {
            return std::mem::take(self);
        }
        if n * 2 <= self.len() {
            let head = Chunk::copy_of(&self[..n]);
            self.start += place(n);
            head
        } else {
            let tail = Chunk::copy_of(&self[n..]);
            self.truncate(n);
            std::mem::replace(self, tail)
        }
    }

    /// Moves the window to the front of the buffer, so that the spare room is one piece.
    pub fn compact(&mut self) {
        self.unshare();
        if self.start > 0 {
            self.memory.own().copy_within(self.start as usize..self.end as usize, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// Returns the memory of the chunk alone in bytes; 0 for shared memory.
    #[inline]
    pub fn memory(&self) -> usize {
        match &self.memory {
            Memory::Own(bytes) => bytes.len(),
            Memory::Shared(_) | Memory::Foreign(_) => 0,
        }
    }

    /// Moves the window into memory of about its size, if that saves most of it: for a wait whose length the peer
    /// decides.
    pub fn shrink(&mut self) {
        let needed = (2 * self.len()).max(LEAST_SHRUNK_BYTES);
        if 2 * needed <= self.memory.own().len() {
            let mut smaller = zeroed(needed);
            smaller[..self.len()].copy_from_slice(self);
            *self = Chunk { start: 0, end: place(self.len()), memory: Memory::Own(smaller) };
        }
    }

    /// Makes a copy of shared memory.
    #[inline]
    fn unshare(&mut self) {
        if matches!(self.memory, Memory::Shared(_) | Memory::Foreign(_)) {
            *self = Chunk::copy_of(self);
        }
    }

    /// Makes room after a full window: for `total` bytes in all, and at least for one more. An empty chunk stays
    /// unchanged; a read gives it memory.
    #[inline]
    pub fn make_room(&mut self, total: usize) {
        if !self.is_empty() && self.spare().is_empty() {
            self.reserve_total(total.max(self.len() + 1));
        }
    }

    /// Ensures at least `total` bytes of capacity, keeping the window.
    pub fn reserve_total(&mut self, total: usize) {
        self.compact();
        let bytes = self.memory.own();
        if bytes.len() < total {
            if bytes.is_empty() && total <= SIZE.get() {
                *self = Chunk::take();
            } else {
                let mut larger = zeroed(total.max(SIZE.get()));
                let end = self.end as usize;
                larger[..end].copy_from_slice(&bytes[..end]);
                self.memory = Memory::Own(larger);
            }
        }
    }
}

impl Deref for Chunk {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.memory.bytes()[self.start as usize..self.end as usize]
    }
}

impl DerefMut for Chunk {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.unshare();
        &mut self.memory.own()[self.start as usize..self.end as usize]
    }
}

impl Drop for Chunk {
    #[inline]
    fn drop(&mut self) {
        let Memory::Own(bytes) = &mut self.memory else { return };
        // At the end of a thread the lists may be gone; then the buffer is freed.
        let (free, most) = match bytes.len() {
            0 => return,
            SMALL_BYTES => (&SMALL_FREE, SMALL_FREE_LIST_MAX),
            len if len == SIZE.try_with(Cell::get).unwrap_or(0) => (&FREE, FREE_LIST_MAX),
            _ => return,
        };
        let bytes = std::mem::take(bytes);
        let _ = free.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < most {
                free.push(bytes);
            }
        });
    }
}

impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chunk({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_operations() {
        let mut chunk = Chunk::take();
        chunk.spare()[..5].copy_from_slice(b"hello");
        chunk.filled(5);
        assert_eq!(&chunk[..], b"hello");
        chunk.advance(1);
        let head = chunk.split_to(1);
        assert_eq!((&head[..], &chunk[..]), (&b"e"[..], &b"llo"[..]));
        let head = chunk.split_to(2);
        assert_eq!((&head[..], &chunk[..]), (&b"ll"[..], &b"o"[..]));
        chunk.advance(1);
        assert!(chunk.is_empty() && chunk.spare().is_empty(), "an emptied chunk owns no memory");
    }

    #[test]
    fn a_shrunk_chunk_keeps_little_besides_its_window() {
        for (len, most) in [(2, 1024), (1_000, 2_000), (10_000, 20_000), (CHUNK_BYTES, CHUNK_BYTES)] {
            let data: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let mut chunk = Chunk::take();
            chunk.spare()[..len].copy_from_slice(&data);
            chunk.filled(len);
            chunk.advance(1);
            chunk.shrink();
            assert_eq!(&chunk[..], &data[1..]);
            assert!(chunk.memory.own().len() <= most, "{len}: {}", chunk.memory.own().len());
            chunk.reserve_total(CHUNK_BYTES);
            assert_eq!(&chunk[..], &data[1..]);
        }
    }

    #[test]
    fn a_small_copy_takes_little_memory() {
        for (len, room) in [(1, SMALL_BYTES), (SMALL_BYTES, SMALL_BYTES), (SMALL_BYTES + 1, CHUNK_BYTES)] {
            let mut chunk = Chunk::copy_of(&vec![b'x'; len]);
            assert_eq!((chunk.len(), chunk.memory.own().len()), (len, room));
        }
        assert!(SMALL_FREE.with_borrow(Vec::len) > 0, "it is kept for the next one");
    }

    #[test]
    fn a_full_chunk_gets_room_and_another_keeps_its_own() {
        let mut chunk = Chunk::copy_of(&[b'x'; CHUNK_BYTES]);
        chunk.make_room(0);
        assert!(!chunk.spare().is_empty(), "room for one more at least");
        assert!(chunk.try_append(b"y") && chunk.ends_with(b"xy"));
        let mut chunk = Chunk::copy_of(&[b'x'; CHUNK_BYTES]);
        assert!(!chunk.try_append(b"y") && chunk.len() == CHUNK_BYTES);
        chunk.make_room(3 * CHUNK_BYTES);
        assert_eq!((chunk.len(), chunk.spare().len()), (CHUNK_BYTES, 2 * CHUNK_BYTES));
        chunk.make_room(9 * CHUNK_BYTES);
        assert_eq!(chunk.spare().len(), 2 * CHUNK_BYTES);
        let mut chunk = Chunk::empty();
        chunk.make_room(CHUNK_BYTES);
        assert!(chunk.spare().is_empty());
    }

    #[test]
    fn shared_memory_is_never_changed() {
        let memory: Arc<[u8]> = b"hello"[..].into();
        let window = || Chunk::shared(Arc::clone(&memory), 1..4);
        let mut chunk = window();
        assert_eq!((&chunk[..], chunk.as_ptr()), (&b"ell"[..], memory[1..].as_ptr()));
        assert!(chunk.spare().is_empty() && !chunk.try_append(b"x"));
        chunk.advance(1);
        chunk.shrink();
        assert_eq!(&chunk.split_to(1)[..], b"l");
        assert_eq!((&chunk[..], Arc::strong_count(&memory)), (&b"l"[..], 2));
        let change: [fn(&mut Chunk); 4] = [
            |chunk| chunk[0] = b'E',
            |chunk| chunk.make_room(0),
            |chunk| chunk.reserve_total(2),
            Chunk::compact,
        ];
        for change in change {
            let mut chunk = window();
            change(&mut chunk);
            assert!(chunk.eq_ignore_ascii_case(b"ell") && chunk.try_append(b"!"));
            assert_eq!((&memory[..], Arc::strong_count(&memory)), (&b"hello"[..], 2));
        }
        drop(chunk);
        assert_eq!(Arc::strong_count(&memory), 1);
    }

    #[test]
    fn a_chunk_is_small() {
        assert_eq!(size_of::<Chunk>(), 32);
    }

    #[test]
    #[should_panic(expected = "a window beyond the memory")]
    fn no_window_is_beyond_its_memory() {
        Chunk::shared(b"a"[..].into(), 0..2);
    }

    #[test]
    fn reserve_keeps_the_window() {
        let mut chunk = Chunk::copy_of(b"abc");
        chunk.advance(1);
        chunk.reserve_total(CHUNK_BYTES * 2);
        assert_eq!(&chunk[..], b"bc");
        assert!(chunk.spare().len() >= CHUNK_BYTES);
    }
}
