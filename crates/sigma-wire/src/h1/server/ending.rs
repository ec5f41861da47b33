//! How a client's connection ends: what is left of a request, a client that leaves, the last words.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use sigma_http::h1::BodyReader;
use sigma_http::{Chunk, Frame};
use sigma_net::Deadline;

use super::Server;

/// How long a refused sender is listened to after the answer, so that a reset does not destroy
/// the answer on its way.
const LINGER_MS: u64 = 2_000;

/// Unread body that is worth reading to keep the connection.
const DISCARD_BYTES: u64 = 64 * 1024;

impl Server {
    pub(super) fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.output.is_empty() {
            // A reset tells soon enough if there is nobody to read it.
            self.patience = None;
            return Poll::Pending;
        }
        let half_close_ms = self.limits.half_close_ms;
        let begin = || {
            let deadline = Deadline::new();
            deadline.set(half_close_ms);
            deadline
        };
        self.patience.get_or_insert_with(begin).poll_expired(cx)
    }

    /// Drops what has come of a body that nobody will read: with all of it the connection may go on.
    pub(crate) fn forgo_body(&mut self) {
        while !self.reader.is_done() {
            match self.reader.next(&mut self.input) {
                Ok(Some(Frame::Data(data))) => {
                    self.expects = false;
                    self.body_received += data.len() as u64;
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

    /// Whether the connection may go on behind what is left of the request's body: it is little, and its sender does not
    /// wait for permission to send it. What has no length may go on for ever.
    pub(super) fn may_discard_rest(&self) -> bool {
        match &self.reader {
            BodyReader::Done => true,
            BodyReader::Known(left) => !self.expects && *left <= DISCARD_BYTES,
            BodyReader::Chunked(_) | BodyReader::UntilClose => false,
        }
    }

    /// Reads what is left of a request that was answered without it, if it is little: cheaper
    /// for both sides than a new connection.
    pub async fn discard_rest(&mut self) {
        if !self.persists || self.reader.is_done() || !self.output.is_empty() {
            return;
        }
        let before = self.body_received;
        self.deadline.set(LINGER_MS);
        let done = poll_fn(|cx| {
            loop {
                match self.poll_frame(cx) {
                    Poll::Ready(Ok(Frame::Data(_))) if self.body_received - before <= DISCARD_BYTES => {}
                    Poll::Ready(Ok(Frame::Data(_)) | Err(_)) => return Poll::Ready(false),
                    Poll::Ready(Ok(Frame::End | Frame::Trailers(_))) => return Poll::Ready(true),
                    Poll::Pending => return self.deadline.poll_expired(cx).map(|()| false),
                }
            }
        })
        .await;
        self.persists &= done;
    }

    /// Whether there is more to ending the connection than to let go of it.
    pub fn has_farewell(&self) -> bool {
        !self.aborted && (self.stream.tls().is_some() || self.is_unread())
    }

    /// Whether the client may still be sending.
    fn is_unread(&self) -> bool {
        !(self.half_closed || self.reader.is_done() && self.input.is_empty())
    }

    /// Ends the connection. A client that is still sending gets to see its answer first: closing
    /// over unread bytes would reset the connection and take the answer with it. One behind TLS is
    /// told that this is the end; without that it would have to fear that something was cut off.
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
