//! Bodies over a multiplexed stream, the same for both sides of the gateway.
//!
//! Windows carry the backpressure: what was taken in is acknowledged when it was passed on, what
//! goes out waits until the window has room.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Error, Reason, RecvStream, SendStream};
use sigma_http::h1::{HeadLimits, Tolerance};
use sigma_http::{BodyLength, Chunk, Frame, Headers};

use super::fields::{field_map, fields};

/// Limits of trailer fields, as in the chunked coding.
const TRAILER_LIMITS: HeadLimits =
    HeadLimits { line_bytes: 0, head_bytes: 8 * 1024, fields: 64, tolerance: Tolerance::NONE };

/// Pieces up to this size are copied for the way out. A larger one keeps the buffer that it came
/// in, which must not be held for a few bytes.
const COPY_BYTES: usize = 16 * 1024;

/// Why the frames of a stream ended before their time.
#[derive(Debug)]
pub(super) enum Broken {
    /// The stream or its connection.
    Stream(Error),
    /// The rule that the peer broke.
    Rule(&'static str),
}

/// The body that a peer sends.
#[derive(Debug)]
pub(super) struct Inflow {
    stream: RecvStream,
    /// Bytes that were handed on, whose window is given back when more is asked for.
    unreleased: usize,
    ended: bool,
}

impl Inflow {
    /// Of a message whose head has come.
    pub(super) fn new(stream: RecvStream) -> Inflow {
        let ended = stream.is_end_stream();
        Inflow { stream, unreleased: 0, ended }
    }

    /// Whether the message has ended, or ends without another frame.
    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// The next frame. Whoever asks has passed on the last one.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, Broken>> {
        self.release();
        if self.ended {
            return Poll::Ready(Ok(Frame::End));
        }
        while let Some(data) = ready!(self.stream.poll_data(cx)) {
            let data = data.map_err(Broken::Stream)?;
            self.unreleased = data.len();
            if !data.is_empty() {
                return Poll::Ready(Ok(Frame::Data(Chunk::copy_of(&data))));
            }
        }
        let trailers = ready!(self.stream.poll_trailers(cx)).map_err(Broken::Stream)?;
        self.ended = true;
        Poll::Ready(match trailers {
            None => Ok(Frame::End),
            Some(map) => match Headers::assemble_trailers(fields(&map), &TRAILER_LIMITS) {
                Ok(headers) => Ok(Frame::Trailers(Box::new(headers))),
                Err(_) => Err(Broken::Rule("a trailer field is invalid")),
            },
        })
    }

    fn release(&mut self) {
        let bytes = std::mem::take(&mut self.unreleased);
        if bytes > 0 {
            // Fails only for a stream that is over, whose window nobody waits for.
            let _ = self.stream.flow_control().release_capacity(bytes);
        }
    }
}

impl Drop for Inflow {
    fn drop(&mut self) {
        // The connection's window outlives the stream's.
        self.release();
    }
}

/// How the outgoing message ends.
#[derive(Debug)]
enum End {
    /// More is to come.
    Open,
    /// With this.
    Queued(Option<Box<Headers>>),
    /// It has ended.
    Sent,
}

/// The body that a peer is sent; holds at most one piece.
#[derive(Debug)]
pub(super) struct Outflow {
    stream: SendStream<Bytes>,
    piece: Bytes,
    end: End,
    /// Bytes that a declared length has left.
    left: Option<u64>,
    taken: u64,
}

impl Outflow {
    /// Of a message of `length` whose head was sent.
    pub(super) fn new(stream: SendStream<Bytes>, length: BodyLength) -> Outflow {
        let left = if let BodyLength::Known(n) = length { Some(n) } else { None };
        Outflow { stream, piece: Bytes::new(), end: End::Open, left, taken: 0 }
    }

    /// Of a message that its head ended.
    pub(super) fn ended(stream: SendStream<Bytes>) -> Outflow {
        Outflow { end: End::Sent, ..Outflow::new(stream, BodyLength::None) }
    }

    /// Whether another frame may be queued.
    pub(super) fn has_room(&self) -> bool {
        self.piece.is_empty()
    }

    /// Queues a frame. An end may follow a piece at once.
    pub(super) fn send(&mut self, frame: Frame) {
        match frame {
            Frame::Data(data) if data.len() > COPY_BYTES => self.piece = Bytes::from_owner(Owned(data)),
            Frame::Data(data) => self.piece = Bytes::copy_from_slice(&data),
            Frame::End if matches!(self.end, End::Open) => self.end = End::Queued(None),
            Frame::Trailers(trailers) if matches!(self.end, End::Open) => {
                self.end = End::Queued(Some(trailers));
            }
            Frame::End | Frame::Trailers(_) => {}
        }
    }

    /// Hands what is queued to the connection as the window allows; ready when it has all.
    ///
    /// # Errors
    /// Returns an error if the stream is over.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while !self.piece.is_empty() {
            let mut room = self.stream.capacity();
            if room == 0 {
                self.stream.reserve_capacity(self.piece.len());
                room = match ready!(self.stream.poll_capacity(cx)) {
                    Some(room) => room?,
                    None => return Poll::Ready(Err(Reason::CANCEL.into())),
                };
            }
            let piece = self.piece.split_to(room.min(self.piece.len()));
            self.taken += piece.len() as u64;
            let last = self.is_last(piece.len());
            self.stream.send_data(piece, last)?;
            if last {
                self.end = End::Sent;
            }
        }
        match std::mem::replace(&mut self.end, End::Sent) {
            End::Open => self.end = End::Open,
            End::Queued(None) => self.stream.send_data(Bytes::new(), true)?,
            End::Queued(Some(trailers)) => self.stream.send_trailers(field_map(&trailers, |_| true))?,
            End::Sent => {}
        }
        Poll::Ready(Ok(()))
    }

    /// A body that has its declared length ends with its last byte, not in a frame of its own.
    fn is_last(&mut self, bytes: usize) -> bool {
        let ended = matches!(self.end, End::Queued(None)) && self.piece.is_empty();
        match &mut self.left {
            Some(left) => {
                *left = left.saturating_sub(bytes as u64);
                ended || (*left == 0 && matches!(self.end, End::Open))
            }
            None => ended,
        }
    }

    /// Ready when the peer takes the stream back, or its connection ends.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.poll_reset(cx).map(|_| ())
    }

    /// Takes the stream back.
    pub(super) fn reset(&mut self, reason: Reason) {
        self.piece = Bytes::new();
        self.end = End::Sent;
        self.stream.send_reset(reason);
    }

    /// Body bytes that the connection has taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }
}

/// A chunk that gives its bytes away.
struct Owned(Chunk);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
