//! The streams of one connection, in a slab.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use sigma_buffer::held::Account;

use super::frame::ErrorCode;
use crate::multiplex::priority::Priority;
use crate::{Chunk, Fault, Frame, Headers, ResponseHead};

/// The reason why a stream ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The peer reset it.
    Reset(ErrorCode),
    /// This side reset it.
    Cancelled,
    /// The peer broke a rule of the message on it.
    Broken(Fault),
    /// The peer leaves, and did not process it (RFC 9113 §6.8).
    Unprocessed,
    /// The connection ended.
    Lost,
}

impl Fate {
    /// Returns the rule that the peer broke, if that is the reason.
    pub fn broken(self) -> Option<Fault> {
        if let Fate::Broken(fault) = self { Some(fault) } else { None }
    }
}

/// The end of the outgoing message of a stream.
#[derive(Debug, Default)]
pub(super) enum End {
    /// More follows.
    #[default]
    Open,
    /// This end follows the waiting bytes.
    Queued(Option<Box<Headers>>),
    /// It was sent.
    Sent,
}

/// A stream of a connection; valid until it is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamKey {
    pub(super) slot: u32,
    pub(super) id: u32,
}

impl StreamKey {
    /// Returns the position in the connection's slab; slots of released streams are reused.
    pub fn slot(self) -> usize {
        self.slot as usize
    }

    /// Returns the stream's identifier.
    pub fn id(self) -> u32 {
        self.id
    }
}

/// One stream. Its slot keeps the memory of its queues for the next stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) id: u32,
    /// An exchange holds a key to it.
    pub(super) held: bool,
    /// One or both sides may still send.
    pub(super) alive: bool,
    /// The reason why it ended early.
    pub(super) fate: Option<Fate>,
    /// The memory account of its exchange.
    pub(super) account: Account,
    /// Bytes of bodies that the exchange holds.
    pub(super) bodies_held: usize,
    /// Bytes moved at the last entry in the account.
    pub(super) moved_noted: u64,
    pub(super) input: StreamInput,
    pub(super) output: StreamOutput,
}

/// The received part of the peer's message.
#[derive(Debug, Default)]
pub(super) struct StreamInput {
    pub(super) heads: VecDeque<ResponseHead>,
    /// The final head has arrived.
    pub(super) head_done: bool,
    /// The response is one to HEAD: it has no body, whatever length it declares.
    pub(super) to_head: bool,
    pub(super) data: VecDeque<Chunk>,
    /// Memory of `data`.
    pub(super) data_held: usize,
    /// Bytes of the body that have arrived.
    pub(super) received: u64,
    pub(super) trailers: Option<Box<Headers>>,
    pub(super) remote_ended: bool,
    /// Bytes of the declared length that are missing.
    pub(super) expected: Option<u64>,
    pub(super) window: ReceiveWindow,
    /// Forwarded bytes, whose window is given back with the next read.
    pub(super) unreleased: u32,
    /// It has had unread bytes since it was marked.
    pub(super) is_stalled: bool,
    /// The peer's message broke a rule. It got a response, and the end of the stream reports the fault.
    pub(super) malformed: bool,
}

impl StreamInput {
    /// Resets the input of a recycled stream; the memory of its queues stays.
    fn begin(&mut self, window: u32) {
        *self = StreamInput {
            heads: std::mem::take(&mut self.heads),
            data: std::mem::take(&mut self.data),
            window: ReceiveWindow::new(window),
            ..StreamInput::default()
        };
    }

    /// Returns true if bytes wait for the exchange, or are being forwarded.
    fn is_unread(&self) -> bool {
        !self.data.is_empty() || self.unreleased > 0
    }

    /// Returns true if the peer's message has ended and all of it was taken.
    pub(super) fn is_complete(&self) -> bool {
        self.remote_ended && self.data.is_empty() && self.trailers.is_none()
    }
}

/// The part of this side's message that is not sent.
#[derive(Debug, Default)]
pub(super) struct StreamOutput {
    /// Bytes that this side may still send.
    pub(super) window: i64,
    pub(super) piece: Chunk,
    /// Memory of `piece` in the account: counted once it waits.
    pub(super) piece_held: usize,
    pub(super) end: End,
    /// The rest of the declared length.
    pub(super) left: Option<u64>,
    /// Bytes of the body that were sent.
    pub(super) taken: u64,
    /// It waits in a queue for its turn to send.
    pub(super) queued: bool,
    pub(super) priority: Priority,
}

impl StreamOutput {
    /// Returns true if there is something to send.
    fn is_waiting(&self) -> bool {
        !self.piece.is_empty() || matches!(self.end, End::Queued(_))
    }

    /// Adds a frame. Frames after the end are dropped.
    pub(super) fn push(&mut self, frame: Frame) {
        if !matches!(self.end, End::Open) {
            return;
        }
        match frame {
            Frame::Data(data) => self.piece = data,
            Frame::End => self.end = End::Queued(None),
            Frame::Trailers(trailers) => self.end = End::Queued(Some(trailers)),
        }
    }
}

/// The window of a stream or a connection for bytes of the peer.
#[derive(Debug, Default)]
pub(super) struct ReceiveWindow {
    /// Bytes that the peer may still send.
    pub(super) left: i64,
    /// Bytes given back that are not announced to the peer yet.
    pub(super) unannounced: u32,
}

impl ReceiveWindow {
    pub(super) fn new(bytes: u32) -> ReceiveWindow {
        ReceiveWindow { left: bytes.into(), unannounced: 0 }
    }

    /// Opens the window for the bytes that were given back; returns their number, for the peer.
    pub(super) fn announce(&mut self) -> u32 {
        let bytes = std::mem::take(&mut self.unannounced);
        self.left += i64::from(bytes);
        bytes
    }
}

impl Stream {
    /// Resets a recycled stream.
    fn begin(&mut self, id: u32, recv_window: u32, send_window: u32) {
        let mut input = std::mem::take(&mut self.input);
        input.begin(recv_window);
        *self = Stream {
            id,
            held: true,
            alive: true,
            input,
            output: StreamOutput { window: send_window.into(), ..StreamOutput::default() },
            ..Stream::default()
        };
    }

    /// Returns the bytes of bodies moved in both directions.
    pub(super) fn moved(&self) -> u64 {
        self.input.received + self.output.taken
    }

    pub(super) fn local_ended(&self) -> bool {
        matches!(self.output.end, End::Sent)
    }

    /// Returns true if it has something to send.
    pub(super) fn has_output(&self) -> bool {
        self.output.is_waiting()
    }

    /// Drops unread input; returns its size.
    pub(super) fn discard_input(&mut self) -> u32 {
        self.input.heads.clear();
        self.input.trailers = None;
        let bytes = self.input.data.iter().map(|chunk| chunk.len() as u32).sum::<u32>();
        self.input.data.clear();
        self.account.shrink(std::mem::take(&mut self.input.data_held));
        bytes
    }

    /// Drops the waiting output.
    pub(super) fn discard_output(&mut self) {
        self.output.piece = Chunk::empty();
        self.account.shrink(std::mem::take(&mut self.output.piece_held));
        self.output.end = End::Sent;
    }
}

/// Hashes stream identifiers: small increasing numbers.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, id: u32) {
        // The table uses low bits for the position and high bits for the tag.
        self.0 = (self.0 ^ u64::from(id >> 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

/// All streams of a connection that are alive or held.
#[derive(Debug, Default)]
pub(super) struct Streams {
    slots: Vec<Stream>,
    free: Vec<u32>,
    /// The slots of live streams.
    by_id: HashMap<u32, u32, BuildHasherDefault<IdHasher>>,
}

impl Streams {
    /// Returns the number of live streams.
    pub(super) fn alive(&self) -> usize {
        self.by_id.len()
    }

    /// Returns the number of streams that are alive or held.
    pub(super) fn held(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Opens a stream that its requester holds.
    pub(super) fn begin(&mut self, id: u32, recv_window: u32, send_window: u32) -> StreamKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Stream::default());
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize].begin(id, recv_window, send_window);
        self.by_id.insert(id, slot);
        StreamKey { slot, id }
    }

    /// Returns the stream with this identifier, if it is alive.
    #[inline]
    pub(super) fn find(&self, id: u32) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// Returns true if the stream of a key is alive; the stream may be gone.
    #[inline]
    pub(super) fn is_alive(&self, key: StreamKey) -> bool {
        self.slots.get(key.slot as usize).is_some_and(|stream| stream.id == key.id && stream.alive)
    }

    /// Returns the stream in a slot.
    #[inline]
    pub(super) fn at(&mut self, slot: u32) -> &mut Stream {
        &mut self.slots[slot as usize]
    }

    /// Returns the stream of a key.
    ///
    /// # Panics
    /// Panics if the stream was released.
    #[inline]
    pub(super) fn get(&mut self, key: StreamKey) -> &mut Stream {
        let stream = &mut self.slots[key.slot as usize];
        debug_assert!(stream.id == key.id && stream.held, "a key outlived its stream");
        stream
    }

    /// As [`Streams::get`], read-only.
    #[inline]
    pub(super) fn peek(&self, key: StreamKey) -> &Stream {
        &self.slots[key.slot as usize]
    }

    /// Returns true if a live stream has no input to read and expects more.
    pub(super) fn is_any_waiting(&self) -> bool {
        self.by_id.values().any(|slot| {
            let stream = &self.slots[*slot as usize];
            stream.held && !stream.input.is_unread() && !stream.input.remote_ended
        })
    }

    pub(super) fn mark_stalled(&mut self) {
        for stream in &mut self.slots {
            stream.input.is_stalled = stream.held && stream.input.is_unread();
        }
    }

    pub(super) fn stalled_slots(&self) -> Vec<u32> {
        let slots = (0u32..).zip(&self.slots);
        slots.filter(|(_, stream)| stream.held && stream.input.is_stalled).map(|(slot, _)| slot).collect()
    }

    /// Returns the slots of all live streams.
    pub(super) fn alive_slots(&self) -> Vec<u32> {
        self.by_id.values().copied().collect()
    }

    /// Marks a stream as not alive: no more frames for it.
    pub(super) fn bury(&mut self, slot: u32) {
        let stream = &mut self.slots[slot as usize];
        if std::mem::take(&mut stream.alive) {
            self.by_id.remove(&stream.id);
        }
        self.recycle(slot);
    }

    /// Marks a stream as not held.
    pub(super) fn let_go(&mut self, slot: u32) {
        self.slots[slot as usize].held = false;
        self.recycle(slot);
    }

    fn recycle(&mut self, slot: u32) {
        let stream = &mut self.slots[slot as usize];
        if stream.alive || stream.held || stream.id == 0 {
            return;
        }
        stream.id = 0;
        stream.discard_input();
        stream.discard_output();
        stream.account = Account::default();
        self.free.push(slot);
        // Memory of a burst is freed.
        if self.free.len() == self.slots.len() && self.slots.len() > KEPT_SLOTS {
            self.slots = Vec::new();
            self.free = Vec::new();
            self.by_id.shrink_to(KEPT_SLOTS);
        }
    }
}

/// The number of slots that an idle connection keeps.
const KEPT_SLOTS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_reused_when_it_is_neither_alive_nor_held() {
        let mut streams = Streams::default();
        let first = streams.begin(1, 10, 20);
        streams.get(first).output.taken = 7;
        streams.bury(first.slot);
        assert_eq!((streams.alive(), streams.held(), streams.find(1)), (0, 1, None));
        let second = streams.begin(3, 10, 20);
        assert_ne!(first.slot, second.slot);
        streams.let_go(first.slot);
        let third = streams.begin(5, 10, 20);
        assert_eq!((third.slot, streams.get(third).output.taken), (first.slot, 0));
        streams.let_go(second.slot);
        assert_eq!((streams.alive(), streams.held()), (2, 2), "one is alive yet, though nobody holds it");
    }

    #[test]
    fn a_burst_leaves_no_memory_behind() {
        let mut streams = Streams::default();
        let keys: Vec<StreamKey> = (0..100).map(|n| streams.begin(2 * n + 1, 1, 1)).collect();
        for key in keys {
            streams.bury(key.slot);
            streams.let_go(key.slot);
        }
        assert_eq!((streams.slots.capacity(), streams.held()), (0, 0));
    }
}
