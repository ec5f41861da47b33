//! A worker's ring: its connections, and the turns in which the kernel is called.

use std::io::{self, IoSlice};
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use super::Sizes;
use super::buffers::Buffers;
use super::connection::{Connection, End, Incoming, Outgoing, register};
use super::kernel::{Completion, Kernel, MOST_SLOTS, Op};

/// The number of unread buffers of a connection above which the kernel must stop to receive for it.
const MOST_HELD: u16 = 4;

/// Bytes of a connection that wait for the worker's next turn; larger writes go directly to the socket, which saves a
/// copy.
const MOST_QUEUED: usize = 16 * 1024;

/// Memory of sent bytes that is kept for later ones.
const MOST_SPARE: usize = 64;

pub(super) struct Ring {
    /// Dropped by hand: the kernel must release the memory first.
    kernel: ManuallyDrop<Kernel>,
    buffers: ManuallyDrop<Buffers>,
    connections: ManuallyDrop<Vec<Connection>>,
    vacant: Vec<u32>,
    /// Connections with bytes to send in the next turn.
    queued: Vec<u32>,
    /// Connections that were dropped in this turn with unsent bytes.
    leaving: Vec<u32>,
    spare: Vec<Vec<u8>>,
    /// Wakes the task that takes the turns, while it sleeps.
    driver: Option<Waker>,
}

fn failure(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

fn vacancy() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl Ring {
    /// # Errors
    /// Returns the error of the operating system, for example of a kernel before 6.1.
    pub(super) fn new(sizes: Sizes) -> io::Result<Ring> {
        let kernel = Kernel::new(sizes)?;
        let buffers = Buffers::new(&kernel, sizes)?;
        Ok(Ring {
            kernel: ManuallyDrop::new(kernel),
            buffers: ManuallyDrop::new(buffers),
            connections: ManuallyDrop::default(),
            vacant: Vec::new(),
            queued: Vec::new(),
            leaving: Vec::new(),
            spare: Vec::new(),
            driver: None,
        })
    }

    /// Returns the eventfd that becomes readable when a sleeping driver has work.
    pub(super) fn alarm(&self) -> BorrowedFd<'_> {
        self.kernel.alarm()
    }

    /// Takes a connected socket; returns its slot.
    ///
    /// # Errors
    /// Returns an error if the ring is full.
    pub(super) fn adopt(&mut self, socket: OwnedFd) -> io::Result<u32> {
        let slot = match self.vacant.pop() {
            Some(slot) => slot,
            None if self.connections.len() >= MOST_SLOTS => return Err(Errno::MFILE.into()),
            None => {
                // Below the limit, which has 28 bits.
                let slot = self.connections.len() as u32;
                self.connections.push(Connection::vacant(slot));
                slot
            }
        };
        self.connections[slot as usize].occupy(socket);
        Ok(slot)
    }

    /// Returns the socket of a slot.
    pub(super) fn socket(&self, slot: u32) -> io::Result<BorrowedFd<'_>> {
        self.connections.get(slot as usize).and_then(Connection::socket).ok_or_else(vacancy)
    }

    /// Reads into `to`, which has room.
    pub(super) fn read(&mut self, slot: u32, cx: &Context<'_>, to: &mut [u8]) -> Poll<io::Result<usize>> {
        let connection = &mut self.connections[slot as usize];
        if !connection.input.received.is_empty() {
            return Poll::Ready(Ok(self.buffers.read(&mut connection.input.received, to)));
        }
        match connection.input.end {
            Some(End::Closed) => return Poll::Ready(Ok(0)),
            Some(End::Error(errno)) => return Poll::Ready(Err(failure(errno))),
            None => {}
        }
        register(&mut connection.input.reader, cx);
        if connection.input.operation != Incoming::Idle {
            return Poll::Pending;
        }
        if connection.input.unread
            && let Some(read) = read_now(connection, to)
        {
            return Poll::Ready(read);
        }
        let Some(socket) = connection.socket() else { return Poll::Ready(Err(vacancy())) };
        if connection.input.bulk {
            self.kernel.poll(socket, connection.token(Op::Readable));
            connection.input.operation = Incoming::Watched;
        } else {
            self.kernel.receive(socket, connection.token(Op::Receive));
            connection.input.operation = Incoming::Receiving;
        }
        self.wake_driver();
        Poll::Pending
    }

    /// Writes some of `from`, which is not empty: small writes are sent together in the next turn.
    pub(super) fn write(
        &mut self,
        slot: u32,
        cx: &Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let connection = &mut self.connections[slot as usize];
        if let Some(errno) = connection.broken {
            return Poll::Ready(Err(failure(errno)));
        }
        let length: usize = from.iter().map(|slice| slice.len()).sum();
        let is_small = connection.out.len() + length <= MOST_QUEUED;
        match connection.outgoing {
            Outgoing::Queued if is_small => {
                from.iter().for_each(|slice| connection.out.extend_from_slice(slice));
                return Poll::Ready(Ok(length));
            }
            Outgoing::Idle if is_small => {
                connection.out = self.spare.pop().unwrap_or_default();
                from.iter().for_each(|slice| connection.out.extend_from_slice(slice));
                connection.outgoing = Outgoing::Queued;
                self.queued.push(slot);
                self.wake_driver();
                return Poll::Ready(Ok(length));
            }
            Outgoing::Idle => {}
            Outgoing::Queued | Outgoing::Sending | Outgoing::Full => {
                register(&mut connection.writer, cx);
                return Poll::Pending;
            }
        }
        let Some(socket) = connection.socket() else { return Poll::Ready(Err(vacancy())) };
        match send_now(socket, from) {
            Ok(n) => Poll::Ready(Ok(n)),
            Err(Errno::AGAIN) => self.wait_for_room(slot, cx),
            Err(errno) => Poll::Ready(Err(errno.into())),
        }
    }

    /// Moves available bytes into an empty pipe: first the bytes that the kernel has received into buffers, by `write`,
    /// then bytes in the socket, by `pass`. Returns their number; 0 is the end of the stream.
    pub(super) fn move_out(
        &mut self,
        slot: u32,
        cx: &Context<'_>,
        write: impl FnOnce(&[u8]) -> io::Result<usize>,
        pass: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let connection = &mut self.connections[slot as usize];
        if !connection.input.received.is_empty() {
            let written = write(self.buffers.first(&connection.input.received));
            if let Ok(n) = written {
                self.buffers.advance(&mut connection.input.received, n);
            }
            return Poll::Ready(written);
        }
        match connection.input.end {
            Some(End::Closed) => return Poll::Ready(Ok(0)),
            Some(End::Error(errno)) => return Poll::Ready(Err(failure(errno))),
            None => {}
        }
        register(&mut connection.input.reader, cx);
        match connection.input.operation {
            Incoming::Idle => {}
            Incoming::Receiving => {
                self.kernel.cancel(connection.token(Op::Receive));
                connection.input.operation = Incoming::Stopping;
                self.wake_driver();
                return Poll::Pending;
            }
            Incoming::Watched | Incoming::Stopping => return Poll::Pending,
        }
        let Some(socket) = connection.socket() else { return Poll::Ready(Err(vacancy())) };
        if connection.input.unread {
            match pass(socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                passed => return Poll::Ready(passed),
            }
        }
        self.kernel.poll(socket, connection.token(Op::Readable));
        (connection.input.unread, connection.input.bulk) = (false, true);
        connection.input.operation = Incoming::Watched;
        self.wake_driver();
        Poll::Pending
    }

    /// Moves bytes of a pipe to the socket, by `pass`, after all written bytes.
    pub(super) fn move_in(
        &mut self,
        slot: u32,
        cx: &Context<'_>,
        pass: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let connection = &mut self.connections[slot as usize];
        if let Some(errno) = connection.broken {
            return Poll::Ready(Err(failure(errno)));
        }
        if connection.outgoing != Outgoing::Idle {
            register(&mut connection.writer, cx);
            return Poll::Pending;
        }
        let Some(socket) = connection.socket() else { return Poll::Ready(Err(vacancy())) };
        match pass(socket) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_for_room(slot, cx),
            passed => Poll::Ready(passed),
        }
    }

    /// Waits until the socket has room.
    fn wait_for_room(&mut self, slot: u32, cx: &Context<'_>) -> Poll<io::Result<usize>> {
        let connection = &mut self.connections[slot as usize];
        let Some(socket) = connection.socket() else { return Poll::Ready(Err(vacancy())) };
        self.kernel.poll(socket, connection.token(Op::Writable));
        connection.outgoing = Outgoing::Full;
        register(&mut connection.writer, cx);
        self.wake_driver();
        Poll::Pending
    }

    /// Ready unless the socket has no room for written bytes.
    pub(super) fn flush(&mut self, slot: u32, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let connection = &mut self.connections[slot as usize];
        match (connection.broken, connection.outgoing) {
            (Some(errno), _) => Poll::Ready(Err(failure(errno))),
            (None, Outgoing::Sending) => {
                register(&mut connection.writer, cx);
                Poll::Pending
            }
            // Queued bytes are sent, whatever happens to the stream.
            (None, Outgoing::Idle | Outgoing::Queued | Outgoing::Full) => Poll::Ready(Ok(())),
        }
    }

    /// Closes the sending side after the written bytes.
    pub(super) fn shutdown(&mut self, slot: u32, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let connection = &mut self.connections[slot as usize];
        if let Some(errno) = connection.broken {
            return Poll::Ready(Err(failure(errno)));
        }
        if matches!(connection.outgoing, Outgoing::Queued | Outgoing::Sending) {
            register(&mut connection.writer, cx);
            return Poll::Pending;
        }
        match rustix::net::shutdown(self.socket(slot)?, Shutdown::Write) {
            // The peer was faster.
            Ok(()) | Err(Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(errno) => Poll::Ready(Err(errno.into())),
        }
    }

    /// Handles the drop of a stream. Its written bytes are still sent; then the socket closes.
    pub(super) fn leave(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        connection.left = true;
        (connection.input.reader, connection.writer) = (None, None);
        self.buffers.clear(&mut connection.input.received);
        if let Some(token) = connection.incoming_token() {
            self.kernel.cancel(token);
        }
        match connection.outgoing {
            Outgoing::Idle => {}
            Outgoing::Full => self.kernel.cancel(connection.token(Op::Writable)),
            Outgoing::Queued | Outgoing::Sending => self.leaving.push(slot),
        }
        self.vacate_at_rest(slot);
        self.wake_driver();
    }

    /// Returns true if no connection is left.
    pub(super) fn is_deserted(&self) -> bool {
        self.vacant.len() == self.connections.len()
    }

    /// Returns the number of connections whose bytes wait in the kernel, because they have unread bytes here.
    #[cfg(test)]
    pub(super) fn stopped(&self) -> usize {
        let is_stopped = |connection: &&Connection| {
            connection.input.operation == Incoming::Idle && !connection.input.received.is_empty()
        };
        self.connections.iter().filter(is_stopped).count()
    }

    /// Returns the number of slots, taken or not.
    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.connections.len()
    }

    fn vacate_at_rest(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.left && connection.is_at_rest() {
            connection.left = false;
            connection.vacate();
            self.vacant.push(slot);
        }
    }

    fn wake_driver(&mut self) {
        if let Some(driver) = self.driver.take() {
            self.kernel.set_alarm(false);
            driver.wake();
        }
    }

    /// Wakes `driver` later, by the alarm or for a stream; returns false if there is work already.
    ///
    /// The kernel's flag for deferred work may stay set without any: another processor sets it after it has queued the
    /// work, which a turn may have done before. So only a turn with the alarm on tells whether there is work.
    ///
    /// # Errors
    /// Returns the same errors as [`Ring::turn`].
    pub(super) fn sleep(&mut self, driver: &Waker) -> io::Result<bool> {
        self.kernel.set_alarm(true);
        let idle = match self.queued.is_empty() && !self.kernel.has_work() {
            true => true,
            false => !self.turn()? && self.queued.is_empty() && !self.kernel.has_entries(),
        };
        if idle {
            self.driver = Some(driver.clone());
        } else {
            self.kernel.set_alarm(false);
        }
        Ok(idle)
    }

    /// Sends queued bytes, lets the kernel work, and handles its completions. Returns true if there were any.
    ///
    /// # Errors
    /// Returns the error of the operating system if the ring is unusable.
    pub(super) fn turn(&mut self) -> io::Result<bool> {
        let mut queued = std::mem::take(&mut self.queued);
        queued.drain(..).for_each(|slot| self.send(slot));
        self.queued = queued;
        let entered = self.kernel.enter();
        let mut any = false;
        while let Some(completion) = self.kernel.completion() {
            any = true;
            self.complete(completion);
        }
        match entered {
            Ok(()) => {}
            // The kernel lacks memory or is interrupted: the queue waits for the next turn.
            Err(error) if is_passing(&error) => any = true,
            Err(error) => return Err(error),
        }
        for slot in std::mem::take(&mut self.leaving) {
            let connection = &self.connections[slot as usize];
            if connection.left && connection.outgoing == Outgoing::Sending {
                self.kernel.linger(connection.token(Op::Linger));
            }
        }
        Ok(any)
    }

    /// Wakes all tasks that wait for a connection.
    pub(super) fn wake_all(&mut self) {
        for connection in self.connections.iter_mut() {
            connection.wake_reader();
            connection.wake_writer();
        }
    }

    #[expect(unsafe_code)]
    fn send(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        connection.outgoing = Outgoing::Sending;
        let Some(socket) = connection.socket() else { return };
        let (rest, token) = (&connection.out[connection.sent..], connection.token(Op::Send));
        // SAFETY: no code touches `out` while `outgoing` is `Sending`, which it is until the completion. The memory
        // stays if the connection moves, and `Ring` leaks it rather than drop it while the kernel uses it.
        unsafe { self.kernel.send(socket, rest, token) };
    }

    fn complete(&mut self, completion: Completion) {
        let Completion { token, .. } = completion;
        let connection = &mut self.connections[token.slot as usize];
        if connection.generation != token.generation {
            // Only a timeout or a cancellation outlives its connection.
            return;
        }
        match token.op {
            Op::Receive => self.has_received(token.slot, completion),
            Op::Readable => {
                connection.input.operation = Incoming::Idle;
                connection.input.unread = true;
                connection.wake_reader();
            }
            Op::Writable => {
                connection.outgoing = Outgoing::Idle;
                connection.wake_writer();
            }
            Op::Send => self.has_sent(token.slot, completion.result),
            Op::Linger if connection.left && connection.outgoing == Outgoing::Sending => {
                self.kernel.cancel(connection.token(Op::Send));
            }
            Op::Linger | Op::Cancel => {}
        }
        self.vacate_at_rest(token.slot);
    }

    fn has_received(&mut self, slot: u32, completion: Completion) {
        let connection = &mut self.connections[slot as usize];
        let was_stopping = connection.input.operation == Incoming::Stopping;
        if !completion.more {
            connection.input.operation = Incoming::Idle;
        }
        if let Some(buffer) = completion.buffer {
            match u32::try_from(completion.result) {
                Ok(length) if length > 0 && !connection.left => {
                    self.buffers.add(&mut connection.input.received, buffer, length);
                }
                _ => self.buffers.give_back(buffer),
            }
        }
        match completion.result {
            1.. => {
                if connection.input.received.buffers() >= MOST_HELD
                    && connection.input.operation == Incoming::Receiving
                {
                    self.kernel.cancel(connection.token(Op::Receive));
                    connection.input.operation = Incoming::Stopping;
                }
            }
            0 => connection.input.end = Some(End::Closed),
            error => match Errno::from_raw_os_error(-error) {
                // Large data, or no buffer is left in the group: the reader reads the rest itself.
                Errno::CANCELED | Errno::NOBUFS => {
                    (connection.input.unread, connection.input.bulk) = (true, true)
                }
                Errno::INTR | Errno::AGAIN => connection.input.unread = true,
                errno => connection.input.end = Some(End::Error(errno.raw_os_error())),
            },
        }
        if was_stopping && !completion.more {
            (connection.input.unread, connection.input.bulk) = (true, true);
        }
        connection.wake_reader();
    }

    fn has_sent(&mut self, slot: u32, result: i32) {
        let connection = &mut self.connections[slot as usize];
        match result {
            1.. => connection.sent += result.unsigned_abs() as usize,
            0 => connection.broken = Some(Errno::PIPE.raw_os_error()),
            error => match Errno::from_raw_os_error(-error) {
                Errno::INTR | Errno::AGAIN => {}
                errno => connection.broken = Some(errno.raw_os_error()),
            },
        }
        if connection.broken.is_none() && connection.sent < connection.out.len() {
            self.send(slot);
            return;
        }
        let mut out = std::mem::take(&mut connection.out);
        connection.sent = 0;
        connection.outgoing = Outgoing::Idle;
        connection.wake_writer();
        if self.spare.len() < MOST_SPARE {
            out.clear();
            self.spare.push(out);
        }
    }
}

impl Drop for Ring {
    #[expect(unsafe_code)]
    fn drop(&mut self) {
        if self.kernel.quiesce() {
            // SAFETY: each is dropped once, here, and not used afterwards. The kernel's end is first.
            unsafe {
                ManuallyDrop::drop(&mut self.kernel);
                ManuallyDrop::drop(&mut self.buffers);
                ManuallyDrop::drop(&mut self.connections);
            }
        } else {
            tracing::warn!("io_uring does not end; the memory that it may use is not freed");
        }
    }
}

/// Returns true for errors that may be gone at the next call.
fn is_passing(error: &io::Error) -> bool {
    let passing = [Errno::INTR, Errno::AGAIN, Errno::BUSY, Errno::NOMEM];
    passing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Reads available bytes from the socket; None without bytes. A read that does not fill `to` counts as the end of the
/// available bytes.
fn read_now(connection: &mut Connection, to: &mut [u8]) -> Option<io::Result<usize>> {
    let socket = connection.socket()?;
    let room = to.len();
    let read = loop {
        match rustix::net::recv(socket, &mut *to, RecvFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            read => break read.map(|(n, _)| n),
        }
    };
    match read {
        Ok(0) => connection.input.end = Some(End::Closed),
        Ok(n) if n < room => {
            connection.input.unread = false;
            connection.input.bulk = n > MOST_QUEUED;
        }
        Ok(_) => {}
        Err(Errno::AGAIN) => {
            connection.input.unread = false;
            return None;
        }
        Err(errno) => connection.input.end = Some(End::Error(errno.raw_os_error())),
    }
    Some(read.map_err(io::Error::from))
}

fn send_now(socket: BorrowedFd<'_>, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match rustix::net::sendmsg(socket, from, &mut rustix::net::SendAncillaryBuffer::default(), flags) {
            Err(Errno::INTR) => {}
            sent => return sent,
        }
    }
}
