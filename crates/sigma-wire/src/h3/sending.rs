//! One message for the peer on its stream.

use std::task::{Context, Poll};

use sigma_http::h3::{ErrorCode, data_header};
use sigma_http::{BodyLength, Chunk, Frame, Headers};
use sigma_net::quic::{SendError, SendStream, Stopped};

use super::common::Common;

/// Pieces of a body of this size or more are not copied.
const LARGE_BYTES: usize = 2 * 1024;

/// The first memory of a head: most heads fit.
const HEAD_BYTES: usize = 256;

/// The end of the message.
#[derive(Debug)]
enum End {
    /// More follows.
    Open,
    /// This end follows the waiting bytes.
    Queued(Option<Box<Headers>>),
    /// It was sent.
    Sent,
}

/// The writing of one message.
#[derive(Debug)]
pub(super) struct Sending {
    id: u64,
    send: Option<SendStream>,
    /// Heads and small pieces that were not passed to the stream.
    small: Vec<u8>,
    /// A piece of the body, after the header of its frame.
    piece: Chunk,
    end: End,
    /// The rest of the declared length.
    left: Option<u64>,
    /// Bytes of the body that were queued.
    queued: u64,
}

/// The reason why a message is not sent any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unwanted {
    /// The peer wants no more of it.
    Stopped,
    /// The stream or the connection has ended.
    Lost,
}

impl Sending {
    pub(super) fn new(id: u64, send: SendStream) -> Sending {
        Sending {
            id,
            send: Some(send),
            small: Vec::new(),
            piece: Chunk::empty(),
            end: End::Open,
            left: None,
            queued: 0,
        }
    }

    /// Sets the order of the stream among others.
    pub(super) fn set_order(&mut self, order: i32) {
        if let Some(send) = &mut self.send {
            send.set_priority(order);
        }
    }

    /// Queues a head. `encode` writes its frame.
    pub(super) fn head(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        self.small.reserve(HEAD_BYTES);
        encode(&mut self.small);
    }

    /// Passes an interim head on at once.
    pub(super) fn push(&mut self) {
        if let Some(send) = &mut self.send {
            send.put(std::mem::take(&mut self.small));
        }
    }

    /// Starts the body that follows the head.
    pub(super) fn begin_body(&mut self, length: BodyLength, ended: bool) {
        self.left = if let BodyLength::Known(n) = length { Some(n) } else { None };
        if ended {
            self.end = End::Queued(None);
        }
    }

    /// Returns true if another frame may be queued.
    pub(super) fn has_room(&self) -> bool {
        self.piece.is_empty() && self.send.as_ref().is_none_or(SendStream::has_room)
    }

    /// Returns the bytes of the body that the windows of the peer have taken.
    pub(super) fn taken(&self) -> u64 {
        let held = self.piece.len() + self.send.as_ref().map_or(0, SendStream::held_bytes);
        self.queued.saturating_sub(held as u64)
    }

    /// Returns true if the message was sent to its end.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.end, End::Sent)
    }

    /// Queues a frame; call it only while there is room. An end may follow a piece at once.
    pub(super) fn queue(&mut self, frame: Frame) {
        if !matches!(self.end, End::Open) {
            return;
        }
        match frame {
            Frame::Data(data) => {
                if let Some(left) = &mut self.left {
                    *left = left.saturating_sub(data.len() as u64);
                    // A body of declared length ends with its last byte.
                    if *left == 0 {
                        self.end = End::Queued(None);
                    }
                }
                self.small.extend_from_slice(&data_header(data.len()));
                self.queued += data.len() as u64;
                if data.len() < LARGE_BYTES {
                    self.small.extend_from_slice(&data);
                } else {
                    self.piece = data;
                }
            }
            Frame::End => self.end = End::Queued(None),
            Frame::Trailers(trailers) => self.end = End::Queued(Some(trailers)),
        }
    }

    /// Passes the queue to the stream. Ready when the stream has taken all of it.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>, common: &Common) -> Poll<Result<(), Unwanted>> {
        if matches!(self.end, End::Sent) {
            return Poll::Ready(Ok(()));
        }
        let Some(send) = &mut self.send else { return Poll::Ready(Err(Unwanted::Lost)) };
        let is_empty = self.small.is_empty() && self.piece.is_empty() && matches!(self.end, End::Open);
        if is_empty && send.has_room() {
            return Poll::Ready(Ok(()));
        }
        if self.piece.is_empty() {
            put_trailers(self.id, &mut self.end, common, &mut self.small);
        }
        if !self.small.is_empty() {
            send.put(std::mem::take(&mut self.small));
        }
        let bytes = self.piece.len();
        let mut sent = send.poll_send(cx, &mut self.piece);
        if bytes > 0 {
            common.with(|codec| codec.note_sent(bytes as u64, 1));
        }
        if sent.is_ready() && put_trailers(self.id, &mut self.end, common, &mut self.small) {
            send.put(std::mem::take(&mut self.small));
            sent = send.poll_send(cx, &mut Chunk::empty());
        }
        match sent {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(SendError::Stopped(_))) => return Poll::Ready(Err(Unwanted::Stopped)),
            Poll::Ready(Err(_)) => return Poll::Ready(Err(Unwanted::Lost)),
            Poll::Ready(Ok(())) => {}
        }
        if matches!(self.end, End::Queued(_)) {
            send.finish();
            self.end = End::Sent;
        }
        Poll::Ready(Ok(()))
    }

    /// Ready when the peer wants no more of the message or the connection has ended.
    pub(super) fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.send.as_mut().map(|send| send.poll_stopped(cx)) {
            Some(Poll::Ready(Stopped::Code(_) | Stopped::Lost(_))) => Poll::Ready(()),
            Some(Poll::Ready(Stopped::Finished) | Poll::Pending) | None => Poll::Pending,
        }
    }

    /// Aborts the message.
    pub(super) fn reset(&mut self, code: ErrorCode) {
        if let Some(mut send) = self.send.take()
            && !matches!(self.end, End::Sent)
        {
            send.reset(code.0);
        }
    }

    /// Drops the rest of the message: the peer does not need it.
    pub(super) fn discard(&mut self) {
        self.small = Vec::new();
        self.piece = Chunk::empty();
        self.end = End::Sent;
    }

    /// Returns the stream of a complete message.
    pub(super) fn take_sent(&mut self) -> Option<SendStream> {
        self.send.take()
    }
}

/// Writes queued trailers; returns true if there were any.
fn put_trailers(id: u64, end: &mut End, common: &Common, out: &mut Vec<u8>) -> bool {
    let End::Queued(trailers) = end else { return false };
    let Some(trailers) = trailers.take() else { return false };
    common.with(|codec| codec.put_trailers(id, &trailers, out));
    true
}
