//! One connection, as either of its sides sees it: bytes in, events out, bytes out.
//!
//! Nothing is read, written or waited for here. Whoever drives it feeds [`Codec::receive`] with what the
//! peer sent, writes [`Codec::output`], and wakes the exchanges of [`Codec::take_woken`].

use std::collections::VecDeque;

use sigma_buffer::held::Account;

use super::budget::{Budget, FloodLimits, GLITCHES};
use super::fields::Pseudo;
use super::frame::{
    self, DEFAULT_FRAME_BYTES, DEFAULT_WINDOW, ErrorCode, MAX_31_BITS, MAX_FRAME_BYTES, PREFACE, setting,
};
use super::heads;
use super::hpack::{Decoder, Encoder};
use super::output::Output;
use super::reading::Reading;
use super::stream::{End, Fate, StreamKey, Streams};
use crate::h1::HeadLimits;
use crate::{BodyLength, Fault, Frame, RequestHead, ResponseHead};

/// The table of fields that each side may have: what everybody begins with (RFC 9113 §6.5.2).
const TABLE_BYTES: u32 = 4_096;

/// Streams that this side takes back, whose last frames may be on their way.
const RECENT_RESETS: usize = 128;

/// Streams that a server takes at a time as long as it has said nothing: what it should take at least (RFC 9113
/// §6.5.2).
const UNTOLD_STREAMS: u32 = 100;

/// What the PING asks that tells when a client knows that it has to go.
pub(super) const LEAVING: [u8; 8] = *b"leaving!";

/// Which side of a connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It asks.
    Client,
    /// It answers.
    Server,
}

/// What one side of a connection announces, and holds its peer to.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// The side.
    pub role: Role,
    /// Streams that a client may have at a time.
    pub streams: u32,
    /// Streams that a client may have taken back while their exchanges are not over yet.
    pub pending_resets: usize,
    /// Bytes that the peer may send ahead, per stream.
    pub stream_window: u32,
    /// Bytes that the peer may send ahead on the connection.
    pub connection_window: u32,
    /// Largest frame that the peer may send.
    pub frame_bytes: u32,
    /// Largest list of fields.
    pub header_list_bytes: u32,
    /// A head as it is forwarded.
    pub head: HeadLimits,
    /// What the peer may cost.
    pub flood: FloodLimits,
}

/// A request that has begun.
#[derive(Debug)]
pub struct Incoming {
    /// Its stream, to be released by whoever takes it.
    pub key: StreamKey,
    /// Its head; what is wrong with it is in `length`.
    pub head: RequestHead,
    /// How the body is framed for everybody behind, or why the request is refused.
    pub length: Result<BodyLength, Fault>,
    /// Which one of its connection it is, from 1.
    pub number: u32,
}

/// What a stream has for its exchange.
#[derive(Debug)]
pub enum Arrival {
    /// The next frame.
    Frame(Frame),
    /// The message ended before its time.
    Cut(Fate),
    /// Nothing yet.
    Nothing,
}

/// What the peer has announced.
#[derive(Debug)]
pub(super) struct PeerSettings {
    pub(super) initial_window: u32,
    pub(super) frame_bytes: u32,
    pub(super) streams: u32,
    pub(super) extended_connect: bool,
}

/// How far the end of a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(super) enum Leaving {
    No,
    /// The peer was told not to begin streams, but not which ones were its last.
    Announced,
    /// It knows its last stream.
    Told,
}

/// One connection.
#[derive(Debug)]
pub struct Codec {
    pub(super) config: Config,
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    pub(super) pseudo: Pseudo,
    pub(super) streams: Streams,
    pub(super) incoming: VecDeque<Incoming>,
    pub(super) woken: Vec<u32>,
    pub(super) reading: Reading,
    /// A head of which pieces are missing.
    pub(super) block: Vec<u8>,
    /// Bytes that the peer may still send on the connection.
    pub(super) recv_window: i64,
    pub(super) unannounced: u32,
    pub(super) peer: PeerSettings,
    /// The peer has announced nothing yet.
    pub(super) first_settings: bool,
    /// The peer knows this side's settings.
    pub(super) settled: bool,
    pub(super) last_peer_stream: u32,
    pub(super) next_stream: u32,
    pub(super) begun: u32,
    pub(super) recent_resets: VecDeque<u32>,
    pub(super) out: Output,
    /// What the connection holds besides its streams.
    pub(super) account: Account,
    /// Bytes of `out` and `block` in the account.
    pub(super) output_held: usize,
    pub(super) budget: Budget,
    pub(super) now_ms: u64,
    pub(super) failed: Option<(ErrorCode, &'static str)>,
    pub(super) leaving: Leaving,
    /// The peer takes no further streams.
    pub(super) peer_leaves: bool,
    /// Streams that the node has reset since it sent a head last.
    pub(super) resets_in_a_row: u32,
    /// DATA frames written, and streams that this side began.
    pub(super) frames_sent: u64,
}

impl Codec {
    /// A connection on which nothing was sent yet; what its side says first is in its output.
    pub fn new(config: Config) -> Codec {
        let config = Config {
            frame_bytes: config.frame_bytes.clamp(DEFAULT_FRAME_BYTES, MAX_FRAME_BYTES),
            stream_window: config.stream_window.min(MAX_31_BITS),
            connection_window: config.connection_window.clamp(DEFAULT_WINDOW, MAX_31_BITS),
            ..config
        };
        let mut connection = Codec {
            decoder: Decoder::new(TABLE_BYTES),
            encoder: Encoder::new(TABLE_BYTES),
            pseudo: Pseudo::default(),
            streams: Streams::default(),
            incoming: VecDeque::new(),
            woken: Vec::new(),
            reading: match config.role {
                Role::Client => Reading::FirstSettings,
                Role::Server => Reading::Preface,
            },
            block: Vec::new(),
            recv_window: config.connection_window.into(),
            unannounced: 0,
            peer: PeerSettings {
                initial_window: DEFAULT_WINDOW,
                frame_bytes: DEFAULT_FRAME_BYTES,
                streams: UNTOLD_STREAMS,
                extended_connect: false,
            },
            first_settings: true,
            settled: false,
            last_peer_stream: 0,
            next_stream: 1,
            begun: 0,
            recent_resets: VecDeque::new(),
            out: Output::new(),
            account: config.role.account(),
            output_held: 0,
            budget: Budget::new(config.flood),
            now_ms: 0,
            failed: None,
            leaving: Leaving::No,
            peer_leaves: false,
            resets_in_a_row: 0,
            frames_sent: 0,
            config,
        };
        connection.introduce();
        connection
    }

    /// Says what this side wants to be sent.
    fn introduce(&mut self) {
        let config = &self.config;
        let out = self.out.control();
        let common = [
            (setting::INITIAL_WINDOW_SIZE, config.stream_window),
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
        if config.connection_window > DEFAULT_WINDOW {
            frame::write_window_update(out, 0, config.connection_window - DEFAULT_WINDOW);
        }
    }

    /// The next request that has begun.
    pub fn next_incoming(&mut self) -> Option<Incoming> {
        while let Some(incoming) = self.incoming.pop_front() {
            if self.streams.peek(incoming.key).fate.is_none() {
                return Some(incoming);
            }
            // It was taken back before anybody looked at it.
            self.release(incoming.key);
            heads::recycle_request(incoming.head);
        }
        None
    }

    /// Whether there are such streams as [`Codec::take_woken`] tells.
    pub fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Streams for which something has happened since this was asked last. `wake` gets their slots, some of
    /// them more than once.
    pub fn take_woken(&mut self, wake: impl FnMut(usize)) {
        self.woken.drain(..).map(|slot| slot as usize).for_each(wake);
    }

    /// The glitches of the peer since this was asked last, in the order of [`super::Glitch::ALL`].
    pub fn take_glitches(&mut self) -> [u32; GLITCHES] {
        self.budget.take()
    }

    /// Whether the peer has begun a head and not ended it.
    pub fn is_head_open(&self) -> bool {
        self.reading.is_in_head()
    }

    /// Streams that are open, or whose exchanges are not over.
    pub fn held(&self) -> usize {
        self.streams.held()
    }

    /// Streams begun so far.
    pub fn begun(&self) -> u32 {
        self.begun
    }

    /// Whether a stream more may be opened here.
    pub fn may_open(&self) -> bool {
        self.failed.is_none()
            && !self.peer_leaves
            && self.leaving == Leaving::No
            && self.streams.alive() < self.peer.streams as usize
            && self.next_stream <= MAX_31_BITS
    }

    /// Streams that the peer takes at a time.
    pub fn streams_max(&self) -> u32 {
        self.peer.streams
    }

    /// Whether the peer was told that it has to go.
    pub fn is_leaving(&self) -> bool {
        self.leaving != Leaving::No
    }

    /// Whether the peer has said in SETTINGS how much it takes.
    pub fn is_greeted(&self) -> bool {
        !self.first_settings
    }

    /// Whether no stream can be opened here any more.
    pub fn is_spent(&self) -> bool {
        self.failed.is_some()
            || self.peer_leaves
            || self.leaving != Leaving::No
            || self.next_stream > MAX_31_BITS
    }

    /// Whether the peer understands an extended CONNECT (RFC 8441).
    pub fn takes_extended_connect(&self) -> bool {
        self.peer.extended_connect
    }

    /// Why the connection failed; it is over when its output has left.
    pub fn failure(&self) -> Option<(ErrorCode, &'static str)> {
        self.failed
    }

    /// Whether the peer was told its last stream, and none of them is left.
    pub fn is_done(&self) -> bool {
        self.leaving == Leaving::Told && self.streams.held() == 0
    }

    /// Tells the peer to begin no further streams: first that, and which ones were its last when it must
    /// know (RFC 9113 §6.8).
    pub fn leave(&mut self) {
        if self.failed.is_some() || self.leaving != Leaving::No {
            return;
        }
        match self.config.role {
            Role::Server => {
                self.leaving = Leaving::Announced;
                frame::write_go_away(self.out.control(), MAX_31_BITS, ErrorCode::NO_ERROR);
                frame::write(self.out.control(), frame::kind::PING, 0, 0, &[&LEAVING]);
            }
            Role::Client => {
                self.leaving = Leaving::Told;
                frame::write_go_away(self.out.control(), 0, ErrorCode::NO_ERROR);
            }
        }
    }

    /// Ends the connection with all its streams, for a fault of the peer or of its driver.
    pub fn fail(&mut self, code: ErrorCode, reason: &'static str) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some((code, reason));
        self.reading = Reading::Over;
        frame::write_go_away(self.out.control(), self.last_peer_stream, code);
        self.lose();
    }

    /// The transport is gone.
    pub fn lose(&mut self) {
        self.failed.get_or_insert((ErrorCode::NO_ERROR, "the connection ended"));
        self.reading = Reading::Over;
        for slot in self.streams.alive_slots() {
            self.end_early(slot, Fate::Lost);
        }
    }

    /// A stream ends before its time.
    pub(super) fn end_early(&mut self, slot: u32, fate: Fate) {
        let stream = self.streams.at(slot);
        // An answer that was complete before stays complete.
        if self.config.role == Role::Server || !stream.remote_ended {
            stream.fate.get_or_insert(fate);
        }
        stream.discard_output();
        if !stream.remote_ended {
            let bytes = stream.discard_input();
            self.credit(bytes);
        }
        self.woken.push(slot);
        self.streams.bury(slot);
    }

    /// This side takes a stream back.
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
        frame::write_reset(self.out.control(), id, code);
        if self.recent_resets.len() == RECENT_RESETS {
            self.recent_resets.pop_front();
        }
        self.recent_resets.push_back(id);
    }

    /// Both sides have said their last: nothing comes for this stream any more.
    pub(super) fn end_if_both(&mut self, slot: u32) {
        let stream = self.streams.at(slot);
        if stream.alive && stream.remote_ended && stream.local_ended() {
            self.streams.bury(slot);
        }
    }
}

/// Streams as their exchanges use them.
impl Codec {
    /// The next head of an answer.
    ///
    /// # Errors
    /// Returns an error if the stream ended before one came.
    pub fn take_head(&mut self, key: StreamKey) -> Result<Option<ResponseHead>, Fate> {
        let stream = self.streams.get(key);
        match (stream.heads.pop_front(), stream.fate) {
            (Some(head), _) => Ok(Some(head)),
            (None, Some(fate)) => Err(fate),
            (None, None) => Ok(None),
        }
    }

    /// Whether [`Codec::take_head`] has something to say.
    pub fn has_head(&self, key: StreamKey) -> bool {
        let stream = self.streams.peek(key);
        !stream.heads.is_empty() || stream.fate.is_some()
    }

    /// Whether the peer's message has ended, but for what has arrived already and was not taken.
    pub fn is_input_complete(&self, key: StreamKey) -> bool {
        let stream = self.streams.peek(key);
        stream.remote_ended && stream.data.is_empty() && stream.trailers.is_none()
    }

    /// Whether the peer's message has come whole, whatever of it was taken.
    pub fn has_come_whole(&self, key: StreamKey) -> bool {
        let stream = self.streams.peek(key);
        stream.remote_ended && stream.fate.is_none()
    }

    /// The next frame of the peer's message. Whoever asks has passed on the last one: its window is given back.
    pub fn take_frame(&mut self, key: StreamKey) -> Arrival {
        self.release_taken(key.slot);
        let stream = self.streams.get(key);
        if let Some(chunk) = stream.data.pop_front() {
            stream.is_stalled = false;
            stream.unreleased = chunk.len() as u32;
            stream.account.shrink(chunk.memory());
            stream.data_held = stream.data_held.saturating_sub(chunk.memory());
            return Arrival::Frame(Frame::Data(chunk));
        }
        if let Some(fate) = stream.fate {
            return Arrival::Cut(fate);
        }
        if !stream.remote_ended {
            return Arrival::Nothing;
        }
        Arrival::Frame(stream.trailers.take().map_or(Frame::End, Frame::Trailers))
    }

    /// Why the stream ended before its time, if it did.
    pub fn fate(&self, key: StreamKey) -> Option<Fate> {
        self.streams.peek(key).fate
    }

    /// Whether another frame may be queued.
    pub fn has_room(&self, key: StreamKey) -> bool {
        self.streams.peek(key).piece.is_empty()
    }

    /// Whether nothing of the stream waits for its window or its turn.
    pub fn is_flushed(&self, key: StreamKey) -> bool {
        !self.streams.peek(key).has_output()
    }

    /// Bytes of the body that have left for the connection.
    pub fn taken(&self, key: StreamKey) -> u64 {
        self.streams.peek(key).taken
    }

    /// Queues a frame; to be called only while there is room. An end may follow a piece at once.
    pub fn queue(&mut self, key: StreamKey, frame: Frame) {
        let stream = self.streams.get(key);
        if !stream.alive {
            return;
        }
        match frame {
            Frame::Data(_) | Frame::End | Frame::Trailers(_) if !matches!(stream.end, End::Open) => {}
            Frame::Data(data) => stream.piece = data,
            Frame::End => stream.end = End::Queued(None),
            Frame::Trailers(trailers) => stream.end = End::Queued(Some(trailers)),
        }
    }

    /// Takes a stream back.
    pub fn reset(&mut self, key: StreamKey, code: ErrorCode) {
        self.reset_slot(key.slot, code, Fate::Cancelled);
    }

    /// The exchange is over, and asks nothing of its stream any more.
    pub fn release(&mut self, key: StreamKey) {
        self.release_taken(key.slot);
        let role = self.config.role;
        let stream = self.streams.get(key);
        let left = stream.discard_input();
        if stream.alive {
            let code = match role {
                Role::Client => ErrorCode::CANCEL,
                Role::Server if stream.malformed => ErrorCode::PROTOCOL_ERROR,
                // RFC 9113 §8.1: the rest of the request is not needed.
                Role::Server if stream.local_ended() => ErrorCode::NO_ERROR,
                Role::Server => ErrorCode::INTERNAL_ERROR,
            };
            self.reset_slot(key.slot, code, Fate::Cancelled);
        } else if stream.malformed && stream.fate.is_none() {
            let id = stream.id;
            self.send_reset(id, ErrorCode::PROTOCOL_ERROR);
        }
        self.credit(left);
        self.streams.let_go(key.slot);
    }

    /// Gives back the window of what a stream has handed on.
    pub(super) fn release_taken(&mut self, slot: u32) {
        let stream = self.streams.at(slot);
        let bytes = std::mem::take(&mut stream.unreleased);
        if bytes == 0 {
            return;
        }
        stream.is_stalled = false;
        self.credit_stream(slot, bytes);
        self.credit(bytes);
    }

    /// Gives back a stream's window, if the peer has use for it.
    pub(super) fn credit_stream(&mut self, slot: u32, bytes: u32) {
        let window = self.config.stream_window;
        let stream = self.streams.at(slot);
        if !stream.alive || stream.remote_ended {
            return;
        }
        stream.unannounced += bytes;
        if stream.unannounced >= window / 2 {
            let announced = std::mem::take(&mut stream.unannounced);
            stream.recv_window += i64::from(announced);
            let id = stream.id;
            frame::write_window_update(self.out.control(), id, announced);
        }
    }

    /// Gives back the connection's window of bytes that nobody holds any more.
    pub(super) fn credit(&mut self, bytes: u32) {
        self.unannounced += bytes;
        let half = self.unannounced >= self.config.connection_window / 2;
        // Streams that nobody reads may hold the other half: then half of the window never comes together.
        let scarce = self.recv_window < i64::from(self.config.frame_bytes) && self.unannounced > 0;
        if (half || scarce) && self.failed.is_none() {
            let announced = std::mem::take(&mut self.unannounced);
            self.recv_window += i64::from(announced);
            frame::write_window_update(self.out.control(), 0, announced);
        }
    }
}
