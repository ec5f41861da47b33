//! One connection from the view of either side, without its request streams.
//!
//! This code does no I/O and does not wait. The driver passes bytes of the peer's unidirectional streams to
//! [`Codec::receive_uni`], writes [`Codec::outputs`] to the own ones, and reads requests by [`Codec::read`].

use super::error::{Broken, ErrorCode};
use super::frame::{self, kind, setting, stream};
use super::peer::{Control, Priorities};
use super::qpack::{Decoder, Encoder};
use super::settings::PeerSettings;
use super::varint;
use crate::h1::HeadLimits;
use crate::multiplex::budget::{Budget, FloodLimits, GLITCHES, Glitch, Sent};
use crate::multiplex::fields::Pseudo;
use crate::multiplex::priority::Priority;

/// Inserted entries that a peer may send at the start of a connection, and for each request, without a glitch.
const FREE_INSERTS: u64 = 256;
const INSERTS_PER_REQUEST: u64 = 64;

/// The identifier of the first GOAWAY of a server: no request is excluded yet (RFC 9114 §5.2).
const ALL_REQUESTS: u64 = varint::MAX - 3;

/// The side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Sends requests
    Client,
    /// Sends responses
    Server,
}

/// The settings that one side announces and enforces.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// The side of the connection.
    pub role: Role,
    /// Concurrent requests of a client.
    pub streams: u32,
    /// The largest list of fields.
    pub header_list_bytes: u32,
    /// The capacity of the dynamic table that the peer may fill.
    pub table_bytes: u32,
    /// Field sections that may wait for the dynamic table.
    pub blocked_streams: u32,
    /// The limits of a forwarded head.
    pub head: HeadLimits,
    /// The limits of useless frames.
    pub flood: FloodLimits,
}

/// The progress of a graceful end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GracefulEnd {
    No,
    /// The peer has the first GOAWAY, which excludes no request.
    Announced,
    /// The peer has the second GOAWAY, with the first excluded request.
    Told,
}

/// The type of a unidirectional stream of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UniKind {
    /// Its type has not arrived.
    Unknown,
    Control,
    Encoder,
    Decoder,
    Ignored,
}

/// A unidirectional stream of the peer.
#[derive(Debug)]
pub struct UniStream {
    kind: UniKind,
    /// The beginning of its type.
    piece: Vec<u8>,
}

impl Default for UniStream {
    fn default() -> UniStream {
        UniStream { kind: UniKind::Unknown, piece: Vec::new() }
    }
}

/// Bytes for this side's unidirectional streams.
#[derive(Debug, Default)]
pub struct Outputs {
    /// For the control stream
    pub control: Vec<u8>,
    /// For the stream of the encoder
    pub encoder: Vec<u8>,
    /// For the stream of the decoder
    pub decoder: Vec<u8>,
}

/// One connection.
#[derive(Debug)]
pub struct Codec {
    pub(super) config: Config,
    pub(super) fields: FieldSections,
    pub(super) control: Control,
    pub(super) peer: PeerSettings,
    pub(super) priorities: Priorities,
    /// The number of open streams of each critical type that came.
    critical: [bool; 3],
    pub(super) outputs: Outputs,
    /// The first request that has not begun.
    pub(super) next_request: u64,
    pub(super) begun: u32,
    budget: Budget,
    now_ms: u64,
    sent: Sent,
    leaving: GracefulEnd,
}

/// The compression of the field sections of a connection.
#[derive(Debug)]
pub(super) struct FieldSections {
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    pub(super) pseudo: Pseudo,
    /// Memory for field sections.
    pub(super) section: Vec<u8>,
    /// Streams whose field section waits, with the entries that it needs.
    pub(super) blocked: Vec<(u64, u64)>,
    /// Entries that the peer has inserted.
    inserts: u64,
}

impl FieldSections {
    fn new(table_bytes: u32) -> FieldSections {
        FieldSections {
            decoder: Decoder::new(table_bytes),
            encoder: Encoder::default(),
            pseudo: Pseudo::default(),
            section: Vec::new(),
            blocked: Vec::new(),
            inserts: 0,
        }
    }

    /// Counts entries that the peer has inserted; returns the number of those above the allowance of its requests.
    fn count_inserts(&mut self, inserted: u64, requests: u32) -> u64 {
        self.inserts += inserted;
        let free = FREE_INSERTS + INSERTS_PER_REQUEST * u64::from(requests);
        self.inserts.saturating_sub(free).min(inserted)
    }

    /// Removes the streams whose field sections need no further entries.
    fn take_unblocked(&mut self, mut unblocked: impl FnMut(u64)) {
        let inserted = self.decoder.inserted();
        self.blocked.retain(|(id, required)| {
            let waits = *required > inserted;
            if !waits {
                unblocked(*id);
            }
            waits
        });
    }
}

impl Codec {
    /// Returns a connection before its first byte; its output begins with the types of the streams and SETTINGS.
    pub fn new(config: Config) -> Codec {
        let mut outputs = Outputs::default();
        varint::put(stream::CONTROL, &mut outputs.control);
        varint::put(stream::QPACK_ENCODER, &mut outputs.encoder);
        varint::put(stream::QPACK_DECODER, &mut outputs.decoder);
        let mut settings = vec![
            (setting::QPACK_MAX_TABLE_CAPACITY, config.table_bytes.into()),
            (setting::QPACK_BLOCKED_STREAMS, config.blocked_streams.into()),
            (setting::MAX_FIELD_SECTION_SIZE, config.header_list_bytes.into()),
        ];
        if config.role == Role::Server {
            settings.push((setting::ENABLE_CONNECT_PROTOCOL, 1));
            settings.push((setting::H3_DATAGRAM, 1));
        }
        frame::put_settings(&settings, &mut outputs.control);
        Codec {
            fields: FieldSections::new(config.table_bytes),
            control: Control::default(),
            peer: PeerSettings::default(),
            priorities: Priorities::default(),
            critical: [false; 3],
            outputs,
            next_request: 0,
            begun: 0,
            budget: Budget::new(config.flood),
            now_ms: 0,
            sent: Sent::default(),
            leaving: GracefulEnd::No,
            config,
        }
    }

    /// Sets the time, from any monotonic clock.
    pub fn set_now(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Returns the settings of the peer; the defaults before they have arrived.
    pub fn peer(&self) -> &PeerSettings {
        &self.peer
    }

    /// Takes bytes of a unidirectional stream. Returns false if the rest of the stream is ignored.
    ///
    /// # Errors
    /// Returns an error that ends the connection.
    pub fn receive_uni(&mut self, stream: &mut UniStream, bytes: &[u8]) -> Result<bool, Broken> {
        let mut bytes = bytes;
        while stream.kind == UniKind::Unknown {
            let Some((first, rest)) = bytes.split_first() else { return Ok(true) };
            stream.piece.push(*first);
            bytes = rest;
            if let Some((kind, _)) = varint::take(&stream.piece) {
                stream.piece = Vec::new();
                stream.kind = self.open_uni(kind)?;
            }
        }
        match stream.kind {
            UniKind::Control => self.receive_control(bytes)?,
            UniKind::Encoder => self.receive_instructions(bytes)?,
            UniKind::Decoder => self.fields.encoder.instruct(bytes)?,
            UniKind::Unknown | UniKind::Ignored => return Ok(false),
        }
        Ok(true)
    }

    fn open_uni(&mut self, kind: u64) -> Result<UniKind, Broken> {
        let (kind, place) = match kind {
            stream::CONTROL => (UniKind::Control, 0),
            stream::QPACK_ENCODER => (UniKind::Encoder, 1),
            stream::QPACK_DECODER => (UniKind::Decoder, 2),
            stream::PUSH => {
                return Err(match self.config.role {
                    Role::Server => {
                        Broken::connection(ErrorCode::STREAM_CREATION_ERROR, "a push stream from a client")
                    }
                    Role::Client => {
                        Broken::connection(ErrorCode::ID_ERROR, "a push that MAX_PUSH_ID does not allow")
                    }
                });
            }
            _ => {
                self.spend(Glitch::Control)?;
                return Ok(UniKind::Ignored);
            }
        };
        if std::mem::replace(&mut self.critical[place], true) {
            return Err(Broken::connection(
                ErrorCode::STREAM_CREATION_ERROR,
                "a second stream of a type that must be unique",
            ));
        }
        Ok(kind)
    }

    /// Handles the end, or the reset, of a unidirectional stream of the peer.
    ///
    /// # Errors
    /// Returns an error that ends the connection if the stream lasts as long as the connection.
    pub fn end_uni(&mut self, stream: &UniStream) -> Result<(), Broken> {
        match stream.kind {
            UniKind::Unknown | UniKind::Ignored => self.spend(Glitch::Empty),
            UniKind::Control | UniKind::Encoder | UniKind::Decoder => Err(Codec::closed_critical()),
        }
    }

    /// Returns the error of a peer that stops one of the streams that last as long as the connection.
    pub fn closed_critical() -> Broken {
        Broken::connection(ErrorCode::CLOSED_CRITICAL_STREAM, "a critical stream was closed")
    }

    fn receive_instructions(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        let before = self.fields.decoder.inserted();
        let done = self.fields.decoder.instruct(bytes)?;
        let after = self.fields.decoder.inserted();
        if after > before {
            // 00xxxxxx: Insert Count Increment.
            let increment = (after - before) as usize;
            crate::field_coding::integer::put(0, 6, increment, &mut self.outputs.decoder);
        }
        let excess = self.fields.count_inserts(done.inserted, self.begun);
        for _ in 0..excess + done.others {
            self.spend(Glitch::Control)?;
        }
        Ok(())
    }

    /// Acknowledges a field section that needed entries.
    pub(super) fn acknowledge(&mut self, id: u64) {
        // 1xxxxxxx: Section Acknowledgment.
        crate::field_coding::integer::put(0x80, 7, id as usize, &mut self.outputs.decoder);
    }

    /// Handles a request stream that is read no further: a field section on it may never be decoded.
    pub fn abandon(&mut self, id: u64) {
        self.fields.blocked.retain(|(blocked, _)| *blocked != id);
        if self.config.table_bytes > 0 {
            // 01xxxxxx: Stream Cancellation.
            crate::field_coding::integer::put(0x40, 6, id as usize, &mut self.outputs.decoder);
        }
    }

    /// Returns the streams whose field sections need no further entries.
    pub fn take_unblocked(&mut self, unblocked: impl FnMut(u64)) {
        self.fields.take_unblocked(unblocked);
    }

    /// Returns the bytes for this side's unidirectional streams; the caller empties them.
    pub fn outputs(&mut self) -> &mut Outputs {
        &mut self.outputs
    }

    /// Returns true if [`Codec::outputs`] has bytes.
    pub fn has_output(&self) -> bool {
        let Outputs { control, encoder, decoder } = &self.outputs;
        !(control.is_empty() && encoder.is_empty() && decoder.is_empty())
    }

    /// Counts bytes and frames sent to the peer: they allow it control frames.
    pub fn note_sent(&mut self, bytes: u64, frames: u64) {
        self.sent.bytes += bytes;
        self.sent.frames += frames;
    }

    /// Pays for a glitch of the peer.
    ///
    /// # Errors
    /// Returns an error that ends the connection if the peer has sent too many.
    pub fn spend(&mut self, glitch: Glitch) -> Result<(), Broken> {
        if self.budget.pays(glitch, self.now_ms, self.sent) {
            return Ok(());
        }
        Err(Broken::connection(ErrorCode::EXCESSIVE_LOAD, "the peer floods the connection"))
    }

    /// Returns the glitches of the peer since the last call, in the order of [`Glitch::ALL`].
    pub fn take_glitches(&mut self) -> [u32; GLITCHES] {
        self.budget.take()
    }

    /// Returns the number of requests begun so far.
    pub fn begun(&self) -> u32 {
        self.begun
    }

    /// Returns the memory of the dynamic table and of incomplete frames.
    pub fn memory(&self) -> usize {
        let Outputs { control, encoder, decoder } = &self.outputs;
        self.fields.decoder.memory()
            + self.fields.encoder.memory()
            + self.control.memory()
            + control.capacity()
            + encoder.capacity()
            + decoder.capacity()
    }

    /// Takes the changed priorities of requests that have begun.
    pub fn take_priorities(&mut self, change: impl FnMut((u64, Priority))) {
        self.priorities.changed.drain(..).for_each(change);
    }

    /// Registers a request stream of the peer. Returns false if the peer knows that it is not processed, and has to
    /// be rejected.
    pub fn begin(&mut self, id: u64) -> bool {
        if self.leaving == GracefulEnd::Told && id >= self.next_request {
            return false;
        }
        self.next_request = self.next_request.max(id + 4);
        self.begun = self.begun.saturating_add(1);
        self.sent.frames += 1;
        true
    }

    /// Starts a graceful end: a GOAWAY that excludes no request (RFC 9114 §5.2). Returns true at the first call; a
    /// server calls [`Codec::leave_at_last`] a round trip later.
    pub fn leave(&mut self) -> bool {
        if self.leaving != GracefulEnd::No {
            return false;
        }
        let (end, id) = match self.config.role {
            Role::Server => (GracefulEnd::Announced, ALL_REQUESTS),
            // No push was accepted.
            Role::Client => (GracefulEnd::Told, 0),
        };
        self.leaving = end;
        frame::put_number(kind::GOAWAY, id, &mut self.outputs.control);
        true
    }

    /// Sends the second GOAWAY, with the first request that is not processed.
    pub fn leave_at_last(&mut self) {
        if self.leaving == GracefulEnd::Announced {
            self.leaving = GracefulEnd::Told;
            frame::put_number(kind::GOAWAY, self.next_request, &mut self.outputs.control);
        }
    }

    /// Returns true if a GOAWAY was sent.
    pub fn is_leaving(&self) -> bool {
        self.leaving != GracefulEnd::No
    }

    /// Returns true if the peer knows the first excluded request.
    pub fn has_left(&self) -> bool {
        self.leaving == GracefulEnd::Told
    }
}
