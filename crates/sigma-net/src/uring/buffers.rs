//! Buffers that the kernel fills with received bytes, for all connections.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use super::Sizes;
use super::kernel::Kernel;
use crate::pages::Pages;

/// No buffer: there are at most 2^15.
const NONE: u16 = u16::MAX;

/// The received, unread bytes of a connection, in order.
#[derive(Debug)]
pub(super) struct Received {
    first: u16,
    last: u16,
    count: u16,
}

impl Received {
    /// No bytes.
    pub(super) const EMPTY: Received = Received { first: NONE, last: NONE, count: 0 };

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of its buffers.
    pub(super) fn buffers(&self) -> u16 {
        self.count
    }
}

/// The content of a buffer in a connection.
#[derive(Debug, Clone, Copy)]
struct Piece {
    start: u32,
    end: u32,
    next: u16,
}

/// The group: each buffer belongs either to the kernel, in the ring, or to a connection.
pub(super) struct Buffers {
    ring: Pages,
    memory: Pages,
    pieces: Vec<Piece>,
    size: u32,
    tail: u16,
}

impl Buffers {
    /// Registers buffers with `kernel`.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    #[expect(unsafe_code)]
    pub(super) fn new(kernel: &Kernel, sizes: Sizes) -> io::Result<Buffers> {
        let count = usize::from(sizes.buffers);
        let ring = Pages::private(count * size_of::<BufRingEntry>())?;
        let memory = Pages::private(count * sizes.buffer_bytes as usize)?;
        // SAFETY: `Ring` drops the buffers only after the kernel has finished, and leaks them otherwise.
        unsafe { kernel.register_buffers(ring.start().as_ptr() as u64, sizes.buffers) }?;
        let pieces = vec![Piece { start: 0, end: 0, next: NONE }; count];
        let mut buffers = Buffers { ring, memory, pieces, size: sizes.buffer_bytes, tail: 0 };
        (0..sizes.buffers).for_each(|buffer| buffers.give_back(buffer));
        Ok(buffers)
    }

    /// Adds the first `length` bytes of `buffer`, filled by the kernel, to `received`.
    pub(super) fn add(&mut self, received: &mut Received, buffer: u16, length: u32) {
        self.pieces[usize::from(buffer)] = Piece { start: 0, end: length.min(self.size), next: NONE };
        match received.count {
            0 => received.first = buffer,
            _ => self.pieces[usize::from(received.last)].next = buffer,
        }
        received.last = buffer;
        received.count += 1;
    }

    /// Moves bytes from the front of `received` to `to`; returns their number.
    pub(super) fn read(&mut self, received: &mut Received, to: &mut [u8]) -> usize {
        let mut read = 0;
        while received.count > 0 && read < to.len() {
            let held = self.first(received);
            let n = held.len().min(to.len() - read);
            to[read..read + n].copy_from_slice(&held[..n]);
            read += n;
            self.advance(received, n);
        }
        read
    }

    /// Returns the unread bytes of the first buffer of `received`, which is not empty.
    pub(super) fn first(&self, received: &Received) -> &[u8] {
        self.bytes(received.first)
    }

    /// Drops the first `n` of the bytes that [`Buffers::first`] returns.
    pub(super) fn advance(&mut self, received: &mut Received, n: usize) {
        let piece = &mut self.pieces[usize::from(received.first)];
        // At most the length of the piece, which has 32 bits.
        piece.start += n as u32;
        if piece.start == piece.end {
            self.drop_first(received);
        }
    }

    /// Drops unread bytes.
    pub(super) fn clear(&mut self, received: &mut Received) {
        while received.count > 0 {
            self.drop_first(received);
        }
    }

    fn drop_first(&mut self, received: &mut Received) {
        let buffer = received.first;
        received.first = self.pieces[usize::from(buffer)].next;
        received.count -= 1;
        self.give_back(buffer);
    }

    #[expect(unsafe_code)]
    fn bytes(&self, buffer: u16) -> &[u8] {
        let piece = self.pieces[usize::from(buffer)];
        let start = usize::from(buffer) * self.size as usize + piece.start as usize;
        // SAFETY: the bytes are within the mapping, and the kernel writes only to buffers in its ring. A connection's
        // buffer is added there when the connection gives it back.
        unsafe {
            std::slice::from_raw_parts(
                self.memory.start().as_ptr().add(start),
                (piece.end - piece.start) as usize,
            )
        }
    }

    /// Gives the kernel a buffer without a connection.
    #[expect(unsafe_code)]
    pub(super) fn give_back(&mut self, buffer: u16) {
        // The number of buffers is a power of two.
        let mask = self.pieces.len() - 1;
        let entries: *mut BufRingEntry = self.ring.start().as_ptr().cast();
        // SAFETY: the index is within the ring, and the kernel reads no entry at or after the tail. The address
        // belongs to a whole buffer. The tail is in the first entry, in two bytes that the setters do not change; it
        // is stored last.
        unsafe {
            let entry = &mut *entries.add(usize::from(self.tail) & mask);
            entry.set_addr(self.memory.start().as_ptr().add(usize::from(buffer) * self.size as usize) as u64);
            entry.set_len(self.size);
            entry.set_bid(buffer);
            self.tail = self.tail.wrapping_add(1);
            let tail: *const AtomicU16 = BufRingEntry::tail(entries).cast();
            (*tail).store(self.tail, Ordering::Release);
        }
    }
}
