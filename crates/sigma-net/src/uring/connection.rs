//! The state of one connection, and its operations in the kernel.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::task::{Context, Waker};

use super::buffers::Received;
use super::kernel::{Op, Token};

/// The state of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Incoming {
    /// No operation is running.
    Idle,
    /// The kernel receives into buffers of the group.
    Receiving,
    /// The kernel reports readable bytes; the reader reads them itself. For large data, which saves a copy, and if
    /// the group has no buffer left.
    Watched,
    /// The receive is being cancelled.
    Stopping,
}

/// The state of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outgoing {
    /// All written bytes were sent.
    Idle,
    /// Written bytes are sent in the worker's next turn.
    Queued,
    /// The kernel is sending them.
    Sending,
    /// The socket is full; the kernel reports room.
    Full,
}

/// The end of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The peer has closed its side.
    Closed,
    /// An error of the operating system.
    Error(i32),
}

/// A slot: a connection while there is a socket in it.
#[derive(Debug)]
pub(super) struct Connection {
    socket: Option<OwnedFd>,
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) input: SocketInput,
    pub(super) outgoing: Outgoing,
    /// Written bytes; those after `sent` are not sent. They do not move while the kernel sends them.
    pub(super) out: Vec<u8>,
    pub(super) sent: usize,
    /// The error that has ended sending.
    pub(super) broken: Option<i32>,
    pub(super) writer: Option<Waker>,
    /// The stream was dropped; its operations in the kernel still run.
    pub(super) left: bool,
}

/// The input of a connection.
#[derive(Debug)]
pub(super) struct SocketInput {
    pub(super) operation: Incoming,
    pub(super) received: Received,
    /// The socket may have bytes that the kernel has not reported.
    pub(super) unread: bool,
    /// The input is large.
    pub(super) bulk: bool,
    pub(super) end: Option<End>,
    pub(super) reader: Option<Waker>,
}

impl SocketInput {
    const EMPTY: SocketInput = SocketInput {
        operation: Incoming::Idle,
        received: Received::EMPTY,
        unread: false,
        bulk: false,
        end: None,
        reader: None,
    };
}

impl Connection {
    /// Returns an empty slot.
    pub(super) fn vacant(slot: u32) -> Connection {
        Connection {
            socket: None,
            slot,
            generation: 0,
            input: SocketInput::EMPTY,
            outgoing: Outgoing::Idle,
            out: Vec::new(),
            sent: 0,
            broken: None,
            writer: None,
            left: false,
        }
    }

    /// Puts a socket into an empty slot.
    pub(super) fn occupy(&mut self, socket: OwnedFd) {
        let generation = self.generation;
        *self = Connection { socket: Some(socket), generation, ..Connection::vacant(self.slot) };
    }

    /// Closes the socket. Later operations get another generation.
    pub(super) fn vacate(&mut self) {
        self.socket = None;
        self.generation = self.generation.wrapping_add(1);
    }

    /// Returns the socket, unless the slot is empty.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(std::os::fd::AsFd::as_fd)
    }

    pub(super) fn token(&self, op: Op) -> Token {
        Token { op, slot: self.slot, generation: self.generation }
    }

    /// Returns the input operation, if there is one that can be cancelled.
    pub(super) fn incoming_token(&self) -> Option<Token> {
        match self.input.operation {
            Incoming::Receiving => Some(self.token(Op::Receive)),
            Incoming::Watched => Some(self.token(Op::Readable)),
            Incoming::Idle | Incoming::Stopping => None,
        }
    }

    /// Returns true if the kernel has no operation of this connection, and none is queued.
    pub(super) fn is_at_rest(&self) -> bool {
        self.input.operation == Incoming::Idle && self.outgoing == Outgoing::Idle
    }

    pub(super) fn wake_reader(&mut self) {
        if let Some(waker) = self.input.reader.take() {
            waker.wake();
        }
    }

    pub(super) fn wake_writer(&mut self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }
}

/// Registers the task of `cx` with `waker`.
pub(super) fn register(waker: &mut Option<Waker>, cx: &Context<'_>) {
    match waker {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *waker = Some(cx.waker().clone()),
    }
}
