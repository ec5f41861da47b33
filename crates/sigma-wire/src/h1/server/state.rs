//! The parts of the state of a client's connection.

use std::cell::Cell;
use std::rc::Rc;

use sigma_buffer::held::{self, Account};
use sigma_http::{Fault, HeaderId, RequestHead, Version};
use sigma_net::Deadline;

use crate::rules::ResponseForm;
use crate::traffic::ReceivedRequest;

/// The bounds of a connection in requests and time.
#[derive(Debug)]
pub(super) struct Lifespan {
    pub(super) requests: u32,
    /// Milliseconds until the greatest age of the connection, at the last look; the maximum without one.
    pub(super) left_ms: u32,
    /// The listener of the connection still accepts.
    pub(super) listens: Rc<Cell<bool>>,
}

impl Lifespan {
    pub(super) fn is_first(&self) -> bool {
        self.requests == 0
    }
}

/// The current request, or the last one.
#[derive(Debug)]
pub(super) struct CurrentRequest {
    /// The version, which decides the form of the response.
    pub(super) version: Version,
    pub(super) form: ResponseForm,
    /// The client waits for `100 Continue`.
    pub(super) expects: bool,
    pub(super) received: ReceivedRequest,
}

impl CurrentRequest {
    /// Returns the state before the first request.
    pub(super) fn new(body_limit: u64) -> CurrentRequest {
        CurrentRequest {
            version: Version::Http11,
            form: ResponseForm::default(),
            expects: false,
            received: ReceivedRequest::new(body_limit),
        }
    }

    /// Forgets the last request: the response to an invalid head must not depend on it.
    pub(super) fn restart(&mut self) {
        self.version = Version::Http11;
        self.form.bodiless = false;
        self.received.head_bytes = 0;
        self.received.body_bytes = 0;
    }

    /// Begins a request with a valid head.
    pub(super) fn begin(&mut self, head: &RequestHead) {
        self.version = head.version;
        self.form = ResponseForm::of(head.method);
        // HTTP/1.0 has no interim responses, and so no `100 Continue`.
        self.expects = head.version != Version::Http10 && head.headers.has(HeaderId::Expect);
    }

    /// Counts a part of the body. A client that sends it does not wait any more.
    ///
    /// # Errors
    /// Returns an error if the body exceeds its limit.
    #[inline]
    pub(super) fn receive(&mut self, bytes: usize) -> Result<(), Fault> {
        self.expects = false;
        self.received.receive(bytes)
    }
}

/// The part of a connection in the memory for clients.
#[derive(Debug)]
pub(super) struct ConnectionMemory {
    /// The account of the connection and its exchange.
    pub(super) account: Account,
    /// Memory of input and output in the account: counted once they wait.
    pub(super) buffers: usize,
    /// Bytes of bodies in the account.
    pub(super) bodies: usize,
}

impl ConnectionMemory {
    pub(super) fn new() -> ConnectionMemory {
        ConnectionMemory { account: Account::of_connection(), buffers: 0, bodies: 0 }
    }

    /// Counts the buffers that wait, with the bytes moved so far.
    pub(super) fn count_buffers(&mut self, bytes: usize, moved: u64) {
        self.account.update(self.buffers, bytes, moved);
        self.buffers = bytes;
    }

    pub(super) fn hold_bodies(&mut self, bytes: usize) {
        self.account.change(self.bodies, bytes);
        self.bodies = bytes;
    }

    /// Releases the memory of the finished exchange.
    pub(super) fn release(&mut self) {
        self.account.set(0);
        self.buffers = 0;
        self.bodies = 0;
    }

    /// Returns true if its exchange must end because memory for clients is short.
    pub(super) fn is_revoked(&self) -> bool {
        held::revocations() > 0 && self.account.is_revoked()
    }
}

/// The client's sending side.
#[derive(Debug)]
pub(super) enum SendingSide {
    Open,
    /// It is closed. The deadline is the time at which the client counts as gone: set while no bytes are on their way
    /// to it.
    Closed(Option<Deadline>),
}

impl SendingSide {
    pub(super) fn close(&mut self) {
        if self.is_open() {
            *self = SendingSide::Closed(None);
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, SendingSide::Open)
    }

    /// Notes that bytes are on their way to the client.
    pub(super) fn clear_deadline(&mut self) {
        if let SendingSide::Closed(deadline) = self {
            *deadline = None;
        }
    }
}

/// The sign for the client that its response is incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Truncation {
    /// No response was truncated.
    None,
    /// The framing, or a missing closing alert, shows it.
    Close,
    /// The response ends with the connection, for a client of HTTP/1.0: only a reset shows that it is incomplete.
    Reset,
}
