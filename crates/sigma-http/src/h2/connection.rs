//! One connection from the view of either side: bytes in, events out, bytes out.
//!
//! This code does no I/O and does not wait. The driver passes bytes of the peer to [`Codec::receive`], writes
//! [`Codec::output`], and wakes the exchanges of [`Codec::take_woken`].

use std::collections::VecDeque;

use sigma_buffer::held::Account;

use super::frame::{
    self, DEFAULT_FRAME_BYTES, DEFAULT_WINDOW, ErrorCode, MAX_31_BITS, MAX_FRAME_BYTES, PREFACE, setting,
};
use super::output::Output;
use super::reading::Reading;
use super::state::{ConnectionEnd, ConnectionOutput, GracefulEnd, HeaderCodec, PeerState, StreamIds};
use super::stream::{Fate, ReceiveWindow, StreamKey, Streams};
use crate::h1::HeadLimits;
use crate::multiplex::budget::{Budget, FloodLimits, GLITCHES};
use crate::multiplex::heads;
use crate::{BodyLength, Fault, Frame, RequestHead, ResponseHead};

/// The payload of the PING that shows when a client has seen the first GOAWAY.
pub(super) const LEAVING: [u8; 8] = *b"leaving!";

/// The side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Sends requests
    Client,
    /// Sends responses
    Server,
}

/// Bytes that the peer may send ahead of the reads of this side.
#[derive(Debug, Clone, Copy)]
pub struct FlowWindows {
    /// The bytes of each stream.
    pub stream_bytes: u32,
    /// The bytes of all streams of the connection.
    pub connection_bytes: u32,
}

impl FlowWindows {
    /// Returns the nearest windows that the protocol has.
    fn clamped(self) -> FlowWindows {
        FlowWindows {
            stream_bytes: self.stream_bytes.min(MAX_31_BITS),
            connection_bytes: self.connection_bytes.clamp(DEFAULT_WINDOW, MAX_31_BITS),
        }
    }
}

/// The settings that one side announces and enforces.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// The side of the connection.
    pub role: Role,
    /// Concurrent streams of a client.
    pub streams: u32,
    /// Streams that a client has cancelled while their exchanges still run.
    pub pending_resets: usize,
    /// Bytes that the peer may send ahead.
    pub windows: FlowWindows,
    /// Largest frame that the peer may send.
    pub frame_bytes: u32,
    /// The largest list of fields.
    pub header_list_bytes: u32,
    /// The limits of a forwarded head.
    pub head: HeadLimits,
    /// The limits of useless frames.
    pub flood: FloodLimits,
}

/// A new request.
#[derive(Debug)]
pub struct Incoming {
    /// Its stream; the receiver must release it.
    pub key: StreamKey,
    /// Its head; errors in it are in `length`.
    pub head: RequestHead,
    /// The framing of the body, or the reason for the rejection.
    pub length: Result<BodyLength, Fault>,
    /// The number of the request on its connection, from 1.
    pub number: u32,
}

/// The input of a stream for its exchange.
#[derive(Debug)]
pub enum Arrival {
    /// The next frame.
    Frame(Frame),
    /// The message ended early.
    Cut(Fate),
    /// Nothing yet
    Nothing,
}

/// One connection.
#[derive(Debug)]
pub struct Codec {
    pub(super) config: Config,
    pub(super) headers: HeaderCodec,
    pub(super) streams: Streams,
    pub(super) events: PendingEvents,
    pub(super) reading: Reading,
    /// Bytes that the peer may still send on the connection.
    pub(super) window: ReceiveWindow,
    pub(super) peer: PeerState,
    pub(super) ids: StreamIds,
    pub(super) output: ConnectionOutput,
    /// The memory account of the connection, without its streams.
    pub(super) account: Account,
    pub(super) budget: Budget,
    pub(super) now_ms: u64,
    pub(super) end: ConnectionEnd,
}

/// Events that the driver has not taken.
#[derive(Debug, Default)]
pub(super) struct PendingEvents {
    pub(super) incoming: VecDeque<Incoming>,
    /// The slots of streams to wake.
    pub(super) woken: Vec<u32>,
}

impl Codec {
    /// Returns a connection before its first byte; its output begins with this side's preface.
    pub fn new(config: Config) -> Codec {
        let config = Config {
            frame_bytes: config.frame_bytes.clamp(DEFAULT_FRAME_BYTES, MAX_FRAME_BYTES),
            windows: config.windows.clamped(),
            ..config
        };
        let mut connection = Codec {
            headers: HeaderCodec::new(),
            streams: Streams::default(),
            events: PendingEvents::default(),
            reading: match config.role {
                Role::Client => Reading::FirstSettings,
                Role::Server => Reading::Preface,
            },
            window: ReceiveWindow::new(config.windows.connection_bytes),
            peer: PeerState::new(),
            ids: StreamIds::new(),
            output: ConnectionOutput { queue: Output::new(), held: 0, frames_sent: 0 },
            account: config.role.account(),
            budget: Budget::new(config.flood),
            now_ms: 0,
            end: ConnectionEnd { failed: None, leaving: GracefulEnd::No },
            config,
        };
        connection.introduce();
        connection
    }

    /// Writes this side's preface and SETTINGS.
    fn introduce(&mut self) {
        let config = &self.config;
        let out = self.output.queue.control();
        let common = [
            (setting::INITIAL_WINDOW_SIZE, config.windows.stream_bytes),
            (setting::MAX_FRAME_SIZE, config.frame_bytes),
            (setting::MAX_HEADER_LIST_SIZE, config.header_list_bytes),
        ];
        match config.role {
            Role::Client => {
                out.extend_from_slice(PREFACE);
                let own = [(setting::ENABLE_PUSH, 0)];
                frame::write_settings(out, &[&own[..], &common].concat());
            }
            Role::Server => {
                let own = [
                    (setting::MAX_CONCURRENT_STREAMS, config.streams),
                    (setting::ENABLE_CONNECT_PROTOCOL, 1),
                    (setting::NO_RFC7540_PRIORITIES, 1),
                ];
                frame::write_settings(out, &[&own[..], &common].concat());
            }
        }
        if config.windows.connection_bytes > DEFAULT_WINDOW {
            frame::write_window_update(out, 0, config.windows.connection_bytes - DEFAULT_WINDOW);
        }
    }

    /// Returns the next new request.
    pub fn next_incoming(&mut self) -> Option<Incoming> {
        while let Some(incoming) = self.events.incoming.pop_front() {
            if self.streams.peek(incoming.key).fate.is_none() {
                return Some(incoming);
            }
            // It was cancelled before it was read.
            self.release(incoming.key);
            heads::recycle_request(incoming.head);
        }
        None
    }

    /// Returns true if [`Codec::take_woken`] has streams.
    pub fn has_woken(&self) -> bool {
        !self.events.woken.is_empty()
    }

    /// Returns the streams with events since the last call. `wake` gets their slots, some of them more than once.
    pub fn take_woken(&mut self, wake: impl FnMut(usize)) {
        self.events.woken.drain(..).map(|slot| slot as usize).for_each(wake);
    }

    /// Returns the glitches of the peer since the last call, in the order of [`super::Glitch::ALL`].
    pub fn take_glitches(&mut self) -> [u32; GLITCHES] {
        self.budget.take()
    }

    /// Returns true if the peer has begun a head and not ended it.
    pub fn is_head_open(&self) -> bool {
        self.reading.is_in_head()
    }

    /// Returns the number of streams that are open, or whose exchanges still run.
    pub fn held(&self) -> usize {
        self.streams.held()
    }

    /// Returns the number of streams begun so far.
    pub fn begun(&self) -> u32 {
        self.ids.begun
    }

    /// Returns true if another stream may be opened.
    pub fn may_open(&self) -> bool {
        !self.is_spent() && self.streams.alive() < self.peer.settings.streams as usize
    }

    /// Returns the number of concurrent streams that the peer accepts.
    pub fn streams_max(&self) -> u32 {
        self.peer.settings.streams
    }

    /// Returns true if a GOAWAY was sent.
    pub fn is_leaving(&self) -> bool {
        self.end.leaving != GracefulEnd::No
    }

    /// Returns true if the SETTINGS of the peer have arrived.
    pub fn is_greeted(&self) -> bool {
        !self.peer.first_settings
    }

    /// Returns true if no stream can be opened any more.
    pub fn is_spent(&self) -> bool {
        self.end.has_begun() || self.peer.leaves || !self.ids.has_next()
    }

    /// Returns true if the peer supports extended CONNECT (RFC 8441).
    pub fn takes_extended_connect(&self) -> bool {
        self.peer.settings.extended_connect
    }

    /// Returns the reason why the connection failed; it ends once its output is written.
    pub fn failure(&self) -> Option<(ErrorCode, &'static str)> {
        self.end.failed
    }

    /// Returns true if the peer knows its last stream and no stream is left.
    pub fn is_done(&self) -> bool {
        self.end.leaving == GracefulEnd::Told && self.streams.held() == 0
    }

    /// Starts a graceful end: a first GOAWAY, then one with the last stream once the peer has seen the first (RFC
    /// 9113 §6.8).
    pub fn leave(&mut self) {
        if self.end.has_begun() {
            return;
        }
        match self.config.role {
            Role::Server => {
                self.end.leaving = GracefulEnd::Announced;
                frame::write_go_away(self.output.queue.control(), MAX_31_BITS, ErrorCode::NO_ERROR);
                frame::write(self.output.queue.control(), frame::kind::PING, 0, 0, &[&LEAVING]);
            }
            Role::Client => {
                self.end.leaving = GracefulEnd::Told;
                frame::write_go_away(self.output.queue.control(), 0, ErrorCode::NO_ERROR);
            }
        }
    }

    /// Ends the connection with all its streams, after a fault of the peer or of the driver.
    pub fn fail(&mut self, code: ErrorCode, reason: &'static str) {
        if self.end.failed.is_some() {
            return;
        }
        self.end.failed = Some((code, reason));
        self.reading = Reading::Over;
        frame::write_go_away(self.output.queue.control(), self.ids.last_of_peer, code);
        self.lose();
    }

    /// Handles a lost transport.
    pub fn lose(&mut self) {
        self.end.failed.get_or_insert((ErrorCode::NO_ERROR, "the connection ended"));
        self.reading = Reading::Over;
        for slot in self.streams.alive_slots() {
            self.end_early(slot, Fate::Lost);
        }
    }

    /// Ends a stream early.
    pub(super) fn end_early(&mut self, slot: u32, fate: Fate) {
        let stream = self.streams.at(slot);
        // A complete response stays complete.
        if self.config.role == Role::Server || !stream.input.remote_ended {
            stream.fate.get_or_insert(fate);
        }
        stream.discard_output();
        if !stream.input.remote_ended {
            let bytes = stream.discard_input();
            self.credit(bytes);
        }
        self.events.woken.push(slot);
        self.streams.bury(slot);
    }

    /// Resets a stream.
    pub(super) fn reset_slot(&mut self, slot: u32, code: ErrorCode, fate: Fate) {
        let stream = self.streams.at(slot);
        if !stream.alive {
            return;
        }
        let id = stream.id;
        self.send_reset(id, code);
        self.end_early(slot, fate);
    }

    pub(super) fn send_reset(&mut self, id: u32, code: ErrorCode) {
        frame::write_reset(self.output.queue.control(), id, code);
        self.ids.add_reset(id);
    }

    /// Ends a stream once both sides have ended their messages.
    pub(super) fn end_if_both(&mut self, slot: u32) {
        let stream = self.streams.at(slot);
        if stream.alive && stream.input.remote_ended && stream.local_ended() {
            self.streams.bury(slot);
        }
    }
}

/// Streams, as their exchanges use them.
impl Codec {
    /// Returns the next response head.
    ///
    /// # Errors
    /// Returns an error if the stream ended before one arrived.
    pub fn take_head(&mut self, key: StreamKey) -> Result<Option<ResponseHead>, Fate> {
        let stream = self.streams.get(key);
        match (stream.input.heads.pop_front(), stream.fate) {
            (Some(head), _) => Ok(Some(head)),
            (None, Some(fate)) => Err(fate),
            (None, None) => Ok(None),
        }
    }

    /// Returns true if [`Codec::take_head`] has a result.
    pub fn has_head(&self, key: StreamKey) -> bool {
        let stream = self.streams.peek(key);
        !stream.input.heads.is_empty() || stream.fate.is_some()
    }

    /// Returns true if the peer's message has ended and all of it was taken.
    pub fn is_input_complete(&self, key: StreamKey) -> bool {
        self.streams.peek(key).input.is_complete()
    }

    /// Returns true if the peer's message has arrived completely, taken or not.
    pub fn has_come_whole(&self, key: StreamKey) -> bool {
        let stream = self.streams.peek(key);
        stream.input.remote_ended && stream.fate.is_none()
    }

    /// Returns the next frame of the peer's message. The caller has forwarded the previous frame: its window is given
    /// back.
    pub fn take_frame(&mut self, key: StreamKey) -> Arrival {
        self.release_taken(key.slot);
        let stream = self.streams.get(key);
        if let Some(chunk) = stream.input.data.pop_front() {
            stream.input.is_stalled = false;
            stream.input.unreleased = chunk.len() as u32;
            stream.account.shrink(chunk.memory());
            stream.input.data_held = stream.input.data_held.saturating_sub(chunk.memory());
            return Arrival::Frame(Frame::Data(chunk));
        }
        if let Some(fate) = stream.fate {
            return Arrival::Cut(fate);
        }
        if !stream.input.remote_ended {
            return Arrival::Nothing;
        }
        Arrival::Frame(stream.input.trailers.take().map_or(Frame::End, Frame::Trailers))
    }

    /// Returns the reason why the stream ended early, if it did.
    pub fn fate(&self, key: StreamKey) -> Option<Fate> {
        self.streams.peek(key).fate
    }

    /// Returns true if another frame may be queued.
    pub fn has_room(&self, key: StreamKey) -> bool {
        self.streams.peek(key).output.piece.is_empty()
    }

    /// Returns true if no bytes of the stream wait for its window or its turn.
    pub fn is_flushed(&self, key: StreamKey) -> bool {
        !self.streams.peek(key).has_output()
    }

    /// Returns the bytes of the body that the connection has taken.
    pub fn taken(&self, key: StreamKey) -> u64 {
        self.streams.peek(key).output.taken
    }

    /// Queues a frame; call it only while there is room. An end may follow a piece at once.
    pub fn queue(&mut self, key: StreamKey, frame: Frame) {
        let stream = self.streams.get(key);
        if stream.alive {
            stream.output.push(frame);
        }
    }

    /// Cancels a stream.
    pub fn reset(&mut self, key: StreamKey, code: ErrorCode) {
        self.reset_slot(key.slot, code, Fate::Cancelled);
    }

    /// Releases the stream of a finished exchange.
    pub fn release(&mut self, key: StreamKey) {
        self.release_taken(key.slot);
        let role = self.config.role;
        let stream = self.streams.get(key);
        let left = stream.discard_input();
        if stream.alive {
            let code = match role {
                Role::Client => ErrorCode::CANCEL,
                Role::Server if stream.input.malformed => ErrorCode::PROTOCOL_ERROR,
                // RFC 9113 §8.1: the rest of the request is not needed.
                Role::Server if stream.local_ended() => ErrorCode::NO_ERROR,
                Role::Server => ErrorCode::INTERNAL_ERROR,
            };
            self.reset_slot(key.slot, code, Fate::Cancelled);
        } else if stream.input.malformed && stream.fate.is_none() {
            let id = stream.id;
            self.send_reset(id, ErrorCode::PROTOCOL_ERROR);
        }
        self.credit(left);
        self.streams.let_go(key.slot);
    }

    /// Gives back the window of bytes that a stream has forwarded.
    pub(super) fn release_taken(&mut self, slot: u32) {
        let stream = self.streams.at(slot);
        let bytes = std::mem::take(&mut stream.input.unreleased);
        if bytes == 0 {
            return;
        }
        stream.input.is_stalled = false;
        self.credit_stream(slot, bytes);
        self.credit(bytes);
    }

    /// Gives back a stream's window, if the peer can use it.
    pub(super) fn credit_stream(&mut self, slot: u32, bytes: u32) {
        let window = self.config.windows.stream_bytes;
        let stream = self.streams.at(slot);
        if !stream.alive || stream.input.remote_ended {
            return;
        }
        stream.input.window.unannounced += bytes;
        if stream.input.window.unannounced >= window / 2 {
            let announced = stream.input.window.announce();
            let id = stream.id;
            frame::write_window_update(self.output.queue.control(), id, announced);
        }
    }

    /// Gives back the connection's window for bytes that are no longer held.
    pub(super) fn credit(&mut self, bytes: u32) {
        self.window.unannounced += bytes;
        let half = self.window.unannounced >= self.config.windows.connection_bytes / 2;
        // Unread streams may hold the other half: then half of the window never comes together.
        let scarce = self.window.left < i64::from(self.config.frame_bytes) && self.window.unannounced > 0;
        if (half || scarce) && self.end.failed.is_none() {
            let announced = self.window.announce();
            frame::write_window_update(self.output.queue.control(), 0, announced);
        }
    }
}
