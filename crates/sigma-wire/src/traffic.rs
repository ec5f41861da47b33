//! Counts of the bytes and bodies of one exchange, which all versions keep.

use sigma_http::{BodyLength, CarriedBytes, Fault};

use crate::rules::{check_body, lower};

/// The received part of a client's request.
#[derive(Debug)]
pub(crate) struct ReceivedRequest {
    /// Bytes of the head.
    pub(crate) head_bytes: u64,
    /// The declared length of the body.
    pub(crate) length: BodyLength,
    /// Bytes of the body so far.
    pub(crate) body_bytes: u64,
    /// The limit of the body in bytes; 0 for no limit.
    pub(crate) body_limit: u64,
}

impl ReceivedRequest {
    /// Returns the state before a request.
    pub(crate) fn new(body_limit: u64) -> ReceivedRequest {
        ReceivedRequest { head_bytes: 0, length: BodyLength::None, body_bytes: 0, body_limit }
    }

    /// Checks the declared length of the body against its limit.
    ///
    /// # Errors
    /// Returns an error if the body exceeds its limit.
    pub(crate) fn check_length(&self) -> Result<(), Fault> {
        match self.length {
            BodyLength::Known(bytes) => check_body(bytes, self.body_limit),
            _ => Ok(()),
        }
    }

    /// Counts another part of the body.
    ///
    /// # Errors
    /// Returns an error if the body exceeds its limit.
    #[inline]
    pub(crate) fn receive(&mut self, bytes: usize) -> Result<(), Fault> {
        self.body_bytes += bytes as u64;
        check_body(self.body_bytes, self.body_limit)
    }

    /// Lowers the limit of the body, where 0 is no limit.
    pub(crate) fn limit_body(&mut self, bytes: u64) {
        self.body_limit = lower(self.body_limit, bytes);
    }

    /// Returns the bytes of the head and of the body so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.head_bytes + self.body_bytes
    }
}

/// Bytes of a response to a client.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct SentResponse {
    pub(crate) head_bytes: u64,
    pub(crate) body_bytes: u64,
}

impl SentResponse {
    /// Returns the bytes of the whole response, and the bytes of its body.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.head_bytes + self.body_bytes, self.body_bytes)
    }
}

/// The requests on a connection to a node, and the bytes of the current one.
#[derive(Debug, Default)]
pub(crate) struct RequestTraffic {
    /// Requests so far, with the current one.
    pub(crate) requests: u32,
    /// Bytes written before the current request.
    sent_before: u64,
    /// Bytes of the current response.
    pub(crate) received: u64,
}

impl RequestTraffic {
    /// Begins another request, after `written` bytes on the connection.
    pub(crate) fn begin(&mut self, written: u64) {
        self.requests += 1;
        self.sent_before = written;
        self.received = 0;
    }

    /// Returns true if the connection has carried an earlier request.
    pub(crate) fn is_reused(&self) -> bool {
        self.requests > 1
    }

    /// Returns true if none of the `written` bytes belongs to the current request.
    pub(crate) fn is_unsent(&self, written: u64) -> bool {
        written == self.sent_before
    }

    /// Returns the bytes of the current exchange, after `written` bytes on the connection.
    pub(crate) fn carried(&self, written: u64) -> CarriedBytes {
        CarriedBytes { sent: written - self.sent_before, received: self.received }
    }
}
