//! The two queues that a worker shares with the kernel.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use io_uring::register::Restriction;
use io_uring::types::{CancelBuilder, Fd, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};

use super::Sizes;

/// The only group of buffers.
const GROUP: u16 = 0;

/// The completions for each entry of the submission queue: one receive completes many times.
const COMPLETIONS_PER_ENTRY: u32 = 4;

/// How long written bytes may take to be sent after the stream is dropped.
const LINGER: Timespec = if cfg!(test) { Timespec::new().nsec(50_000_000) } else { Timespec::new().sec(10) };

/// `IORING_ENTER_GETEVENTS`: the call also runs deferred work of the kernel.
const GET_EVENTS: u32 = 1;

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// Receive into buffers of the group, again and again
    Receive,
    /// Wait for readable bytes
    Readable,
    /// Wait for room to write
    Writable,
    /// Send bytes
    Send,
    /// Wait for [`LINGER`]
    Linger,
    /// Cancel an operation, whose own completion has the result
    Cancel,
}

/// The name of one operation. The generation separates operations of a connection from earlier users of the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) op: Op,
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// The bits of slots are the rest after operations and generations.
pub(super) const MOST_SLOTS: usize = 1 << 28;

impl Token {
    fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot) << 4 | self.op as u64
    }

    fn from_bits(bits: u64) -> Token {
        let op = match bits & 15 {
            0 => Op::Receive,
            1 => Op::Readable,
            2 => Op::Writable,
            3 => Op::Send,
            4 => Op::Linger,
            _ => Op::Cancel,
        };
        // Both are cut to their bits.
        Token { op, slot: (bits as u32) >> 4, generation: (bits >> 32) as u32 }
    }
}

/// The result of an operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Completion {
    pub(super) token: Token,
    /// Bytes, or events; an error number below 0.
    pub(super) result: i32,
    /// The operation continues.
    pub(super) more: bool,
    /// The filled buffer of the group.
    pub(super) buffer: Option<u16>,
}

/// Returns the operations that a restricted ring accepts: the operations in this file. The numbers are the kernel's.
fn restrictions() -> Vec<Restriction> {
    /// `IORING_REGISTER_EVENTFD`, `IORING_REGISTER_PBUF_RING` and `IORING_REGISTER_SYNC_CANCEL`.
    const REGISTERED: [u8; 3] = [4, 22, 24];
    let queued = [
        opcode::RecvMulti::CODE,
        opcode::PollAdd::CODE,
        opcode::Send::CODE,
        opcode::AsyncCancel::CODE,
        opcode::Timeout::CODE,
    ];
    // Receive into a buffer of the group.
    let flags = Restriction::sqe_flags_allowed(squeue::Flags::BUFFER_SELECT.bits());
    let registered = REGISTERED.into_iter().map(Restriction::register_op);
    registered.chain(queued.into_iter().map(Restriction::sqe_op)).chain([flags]).collect()
}

#[cfg(test)]
thread_local! {
    /// The kernel's flag of deferred work stays set without any.
    pub(super) static STALE_FLAG: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A ring, and its overflow queue.
pub(super) struct Kernel {
    ring: IoUring,
    /// The kernel writes to it when there is work and the worker may be asleep.
    alarm: OwnedFd,
    /// Entries that the submission queue had no room for.
    backlog: VecDeque<squeue::Entry>,
    /// Running operations, each of which may use memory.
    in_kernel: usize,
}

impl Kernel {
    /// Sets up a ring for the calling thread alone.
    ///
    /// # Errors
    /// Returns the error of the operating system, for example of a kernel before 6.1, or of one that forbids it.
    pub(super) fn new(sizes: Sizes) -> io::Result<Kernel> {
        let mut builder = IoUring::builder();
        builder
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(sizes.entries.saturating_mul(COMPLETIONS_PER_ENTRY));
        if sizes.is_restricted {
            builder.setup_r_disabled();
        }
        let ring = builder.build(sizes.entries)?;
        if sizes.is_restricted {
            ring.submitter().register_restrictions(&mut restrictions())?;
            ring.submitter().register_enable_rings()?;
        }
        let alarm = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        ring.submitter().register_eventfd(alarm.as_raw_fd())?;
        Ok(Kernel { ring, alarm, backlog: VecDeque::new(), in_kernel: 0 })
    }

    /// Returns the eventfd that becomes readable, edge-triggered, while [`Kernel::set_alarm`] is on and there is
    /// work.
    pub(super) fn alarm(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }

    /// Turns the alarm on or off; only a worker that is about to sleep needs it.
    pub(super) fn set_alarm(&mut self, on: bool) {
        let completions = self.ring.completion();
        match on {
            true => completions.enable_eventfd(),
            false => completions.disable_eventfd(),
        }
        // Later reads must be newer than this: the kernel records work first and raises the alarm after it.
        fence(Ordering::SeqCst);
    }

    /// Gives the kernel a ring of `entries` buffers at `ring`.
    ///
    /// # Safety
    /// The memory at `ring`, and the memory of its entries, must live until [`Kernel::quiesce`] has returned true.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    // SAFETY is the caller's: the kernel uses the memory after this call.
    #[expect(unsafe_code)]
    pub(super) unsafe fn register_buffers(&self, ring: u64, entries: u16) -> io::Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.ring.submitter().register_buf_ring_with_flags(ring, entries, GROUP, 0) }
    }

    /// Receives from `socket` into the group's buffers until it ends or is cancelled.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>, token: Token) {
        let entry = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), GROUP).build();
        self.queue(entry, token);
    }

    /// Waits for the event of `token` on `socket`.
    pub(super) fn poll(&mut self, socket: BorrowedFd<'_>, token: Token) {
        let events = match token.op {
            Op::Writable => libc::POLLOUT,
            _ => libc::POLLIN | libc::POLLRDHUP,
        };
        // The events are small positive numbers.
        let entry = opcode::PollAdd::new(Fd(socket.as_raw_fd()), events as u32).build();
        self.queue(entry, token);
    }

    /// Sends `bytes`.
    ///
    /// # Safety
    /// The bytes must not move or change until the completion.
    // SAFETY is the caller's: the kernel reads the bytes after this call.
    #[expect(unsafe_code)]
    pub(super) unsafe fn send(&mut self, socket: BorrowedFd<'_>, bytes: &[u8], token: Token) {
        // No caller has that much.
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let entry = opcode::Send::new(Fd(socket.as_raw_fd()), bytes.as_ptr(), length)
            .flags(libc::MSG_NOSIGNAL)
            .build();
        self.queue(entry, token);
    }

    /// Cancels an operation, which then completes; a completed one is ignored.
    pub(super) fn cancel(&mut self, token: Token) {
        let entry = opcode::AsyncCancel::new(token.to_bits()).build();
        self.queue(entry, Token { op: Op::Cancel, ..token });
    }

    /// Completes after [`LINGER`].
    pub(super) fn linger(&mut self, token: Token) {
        static SPAN: Timespec = LINGER;
        self.queue(opcode::Timeout::new(&raw const SPAN).build(), token);
    }

    fn queue(&mut self, entry: squeue::Entry, token: Token) {
        self.in_kernel += 1;
        let entry = entry.user_data(token.to_bits());
        if !self.backlog.is_empty() || !self.push(&entry) {
            self.backlog.push_back(entry);
        }
    }

    #[expect(unsafe_code)]
    fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: callers that queue an entry guarantee its memory: sockets are closed and bytes are freed after the
        // completion, and the timeout value is static.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Returns true if a call of [`Kernel::enter`] may have something to do: the flag of deferred work may be stale.
    pub(super) fn has_work(&mut self) -> bool {
        #[cfg(test)]
        if STALE_FLAG.get() {
            return true;
        }
        let has_deferred = self.ring.submission().taskrun();
        has_deferred || self.has_entries()
    }

    /// Returns true if entries wait for the kernel, or completions for room in their queue.
    pub(super) fn has_entries(&mut self) -> bool {
        let submissions = self.ring.submission();
        !submissions.is_empty() || submissions.cq_overflow()
    }

    /// Submits queued entries and lets the kernel run its deferred work: one system call, more if the queue was too
    /// small, or none without work.
    ///
    /// # Errors
    /// Returns the error of the operating system; the entries stay queued.
    #[expect(unsafe_code)]
    pub(super) fn enter(&mut self) -> io::Result<()> {
        loop {
            while let Some(entry) = self.backlog.pop_front() {
                if !self.push(&entry) {
                    self.backlog.push_front(entry);
                    break;
                }
            }
            if !self.has_work() {
                return Ok(());
            }
            // At most the length of the queue, which has 32 bits.
            let queued = self.ring.submission().len() as u32;
            // SAFETY: no pointer is passed.
            unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued, 0, GET_EVENTS, None) }?;
            if self.backlog.is_empty() {
                return Ok(());
            }
        }
    }

    /// Returns the next completion.
    pub(super) fn completion(&mut self) -> Option<Completion> {
        let entry = self.ring.completion().next()?;
        let (flags, more) = (entry.flags(), cqueue::more(entry.flags()));
        if !more {
            self.in_kernel -= 1;
        }
        let token = Token::from_bits(entry.user_data());
        Some(Completion { token, result: entry.result(), more, buffer: cqueue::buffer_select(flags) })
    }

    /// Cancels everything. Returns true if no operation uses memory of this process any more.
    pub(super) fn quiesce(&mut self) -> bool {
        /// Cancelled operations end at once, in as many calls as needed.
        const MOST_CALLS: usize = 10_000;
        self.in_kernel -= self.backlog.len();
        self.backlog.clear();
        for _ in 0..MOST_CALLS {
            // An operation that has ended meanwhile is not an error.
            let _ = self.ring.submitter().register_sync_cancel(Some(Timespec::new()), CancelBuilder::any());
            if self.enter().is_err() {
                return false;
            }
            let before = self.in_kernel;
            while self.completion().is_some() {}
            if self.in_kernel == 0 {
                return true;
            }
            if self.in_kernel == before && !self.has_work() {
                return false;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_whole() {
        for op in [Op::Receive, Op::Readable, Op::Writable, Op::Send, Op::Linger, Op::Cancel] {
            for (slot, generation) in [(0, 0), (7, u32::MAX), (MOST_SLOTS as u32 - 1, 1)] {
                let token = Token { op, slot, generation };
                assert_eq!(Token::from_bits(token.to_bits()), token);
            }
        }
    }
}
