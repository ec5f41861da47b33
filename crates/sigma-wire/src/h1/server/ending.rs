//! The end of a client's connection: unread request bodies, clients that leave, and the close.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use sigma_http::h1::BodyReader;
use sigma_http::{Chunk, Frame};
use sigma_net::Deadline;

use super::Server;
use super::state::{SendingSide, Truncation};

/// How long a rejected sender is read after the response, so that a reset does not destroy the response on its way.
const LINGER_MS: u64 = 2_000;

/// The size of an unread body that is worth reading to keep the connection.
const DISCARD_BYTES: u64 = 64 * 1024;

impl Server {
    pub(super) fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let SendingSide::Closed(patience) = &mut self.sending_side else { return Poll::Pending };
        if !self.output.is_empty() {
            // If the client is gone, a reset reports it soon enough.
            *patience = None;
            return Poll::Pending;
        }
        let half_close_ms = self.limits.half_close_ms;
        let begin = || {
            let deadline = Deadline::new();
            deadline.set(half_close_ms);
            deadline
        };
        patience.get_or_insert_with(begin).poll_expired(cx)
    }

    /// Drops the received part of an unread body: if it is complete, the connection can continue.
    pub(crate) fn forgo_body(&mut self) {
        while !self.reader.is_done() {
            match self.reader.next(&mut self.input) {
                Ok(Some(Frame::Data(data))) => {
                    self.current.expects = false;
                    self.current.received.body_bytes += data.len() as u64;
                }
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(_) => {
                    self.persists = false;
                    return;
                }
            }
        }
    }

    /// Returns true if the connection can continue after the rest of the request body: the rest is short, and its
    /// sender does not wait for `100 Continue`. A body without a length may be endless.
    pub(super) fn may_discard_rest(&self) -> bool {
        match &self.reader {
            BodyReader::Done => true,
            BodyReader::Known(left) => !self.current.expects && *left <= DISCARD_BYTES,
            BodyReader::Chunked(_) | BodyReader::UntilClose => false,
        }
    }

    /// Reads the rest of a request that got an early response, if it is short: this is cheaper for both sides than a
    /// new connection.
    pub async fn discard_rest(&mut self) {
        if !self.persists || self.reader.is_done() || !self.output.is_empty() {
            return;
        }
        let before = self.current.received.body_bytes;
        self.deadline.set(LINGER_MS);
        let done = poll_fn(|cx| {
            loop {
                match self.poll_frame(cx) {
                    Poll::Ready(Ok(Frame::Data(_)))
                        if self.current.received.body_bytes - before <= DISCARD_BYTES => {}
                    Poll::Ready(Ok(Frame::Data(_)) | Err(_)) => return Poll::Ready(false),
                    Poll::Ready(Ok(Frame::End | Frame::Trailers(_))) => return Poll::Ready(true),
                    Poll::Pending => return self.deadline.poll_expired(cx).map(|()| false),
                }
            }
        })
        .await;
        self.persists &= done;
    }

    /// Returns true if the connection needs more than a drop to end.
    pub fn has_farewell(&self) -> bool {
        self.truncation == Truncation::None && (self.stream.tls().is_some() || self.is_unread())
    }

    /// Returns true if only a reset tells the client that its response was truncated.
    pub fn needs_reset(&self) -> bool {
        self.truncation == Truncation::Reset
    }

    /// Resets the connection.
    pub fn reset(self) {
        self.stream.reset();
    }

    /// Returns true if the client may still be sending.
    fn is_unread(&self) -> bool {
        self.sending_side.is_open() && !(self.reader.is_done() && self.input.is_empty())
    }

    /// Ends the connection. A client that is still sending gets its response first: closing over unread bytes would
    /// reset the connection and lose the response. A client behind TLS gets the closing alert; without it, it would
    /// have to assume a truncation.
    pub async fn close(&mut self) {
        let lingers = self.is_unread();
        self.deadline.set(LINGER_MS);
        self.input = Chunk::empty();
        poll_fn(|cx| {
            if self.stream.poll_shutdown(cx).is_pending() {
                return self.deadline.poll_expired(cx);
            }
            if !lingers {
                return Poll::Ready(());
            }
            loop {
                if self.deadline.poll_expired(cx).is_ready() {
                    return Poll::Ready(());
                }
                match ready!(self.stream.poll_fill(cx, &mut self.input)) {
                    Ok(0) | Err(_) => return Poll::Ready(()),
                    Ok(_) => self.input = Chunk::empty(),
                }
            }
        })
        .await;
    }
}
