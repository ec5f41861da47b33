//! What is known of one connection, and what the kernel does for it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::task::{Context, Waker};

use super::buffers::Received;
use super::kernel::{Op, Token};

/// How bytes come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Incoming {
    /// The kernel was not asked.
    Idle,
    /// It receives into buffers of the group.
    Receiving,
    /// It tells when there is something to read; the reader gets that itself. For much data, which
    /// is spared a copy, and if the group has no buffer left.
    Watched,
    /// It was asked to stop receiving.
    Stopping,
}

/// How bytes go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outgoing {
    /// Everything that was written has left.
    Idle,
    /// What was written leaves with the worker's next turn.
    Queued,
    /// The kernel has it.
    Sending,
    /// The socket is full; the kernel tells when there is room.
    Full,
}

/// How reading has ended.
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
    pub(super) incoming: Incoming,
    pub(super) received: Received,
    /// The socket may hold bytes that the kernel has not told of.
    pub(super) unread: bool,
    /// Much data comes in.
    pub(super) bulk: bool,
    pub(super) end: Option<End>,
    pub(super) reader: Option<Waker>,
    pub(super) outgoing: Outgoing,
    /// Written and not yet sent: those behind `sent`. They stay where they are while the kernel has them.
    pub(super) out: Vec<u8>,
    pub(super) sent: usize,
    /// The error that sending has ended with.
    pub(super) broken: Option<i32>,
    pub(super) writer: Option<Waker>,
    /// The stream is gone; what the kernel has is still to end.
    pub(super) left: bool,
}

impl Connection {
    /// An empty slot.
    pub(super) fn vacant(slot: u32) -> Connection {
        Connection {
            socket: None,
            slot,
            generation: 0,
            incoming: Incoming::Idle,
            received: Received::EMPTY,
            unread: false,
            bulk: false,
            end: None,
            reader: None,
            outgoing: Outgoing::Idle,
            out: Vec::new(),
            sent: 0,
            broken: None,
            writer: None,
            left: false,
        }
    }

    /// Puts a socket into a vacant slot.
    pub(super) fn occupy(&mut self, socket: OwnedFd) {
        let generation = self.generation;
        *self = Connection { socket: Some(socket), generation, ..Connection::vacant(self.slot) };
    }

    /// Closes the socket. Operations of now are told from later ones.
    pub(super) fn vacate(&mut self) {
        self.socket = None;
        self.generation = self.generation.wrapping_add(1);
    }

    /// The socket, unless the slot is vacant.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(std::os::fd::AsFd::as_fd)
    }

    pub(super) fn token(&self, op: Op) -> Token {
        Token { op, slot: self.slot, generation: self.generation }
    }

    /// The operation that brings bytes in, if there is one that can be cancelled.
    pub(super) fn incoming_token(&self) -> Option<Token> {
        match self.incoming {
            Incoming::Receiving => Some(self.token(Op::Receive)),
            Incoming::Watched => Some(self.token(Op::Readable)),
            Incoming::Idle | Incoming::Stopping => None,
        }
    }

    /// Whether the kernel has nothing of this connection, nor is going to get something.
    pub(super) fn is_at_rest(&self) -> bool {
        self.incoming == Incoming::Idle && self.outgoing == Outgoing::Idle
    }

    pub(super) fn wake_reader(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    pub(super) fn wake_writer(&mut self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }
}

/// Has the task of `cx` woken through `waker`.
pub(super) fn register(waker: &mut Option<Waker>, cx: &Context<'_>) {
    match waker {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *waker = Some(cx.waker().clone()),
    }
}
