//! The streams of one connection, in a slab.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use sigma_buffer::held::Account;

use super::frame::ErrorCode;
use super::priority::Priority;
use crate::{Chunk, Fault, Headers, ResponseHead};

/// Why a stream ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The peer took it back.
    Reset(ErrorCode),
    /// This side took it back.
    Cancelled,
    /// The peer broke a rule of the message on it.
    Broken(Fault),
    /// The peer leaves, and did nothing with it (RFC 9113 §6.8).
    Unprocessed,
    /// The connection ended.
    Lost,
}

impl Fate {
    /// The rule that the peer broke, if that is why.
    pub fn broken(self) -> Option<Fault> {
        if let Fate::Broken(fault) = self { Some(fault) } else { None }
    }
}

/// How the outgoing message of a stream ends.
#[derive(Debug, Default)]
pub(super) enum End {
    /// More is to come.
    #[default]
    Open,
    /// With this, behind what waits.
    Queued(Option<Box<Headers>>),
    /// It has ended.
    Sent,
}

/// A stream of a connection; valid until it is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamKey {
    pub(super) slot: u32,
    pub(super) id: u32,
}

impl StreamKey {
    /// The place in the connection's slab; those of released streams are given again.
    pub fn slot(self) -> usize {
        self.slot as usize
    }

    /// The stream's identifier.
    pub fn id(self) -> u32 {
        self.id
    }
}

/// One stream. Its slot keeps the memory of its queues for the next one.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) id: u32,
    /// An exchange holds a key to it.
    pub(super) held: bool,
    /// The peer may still send, and this side may too, or one of both.
    pub(super) alive: bool,
    /// Why it ended early.
    pub(super) fate: Option<Fate>,
    /// What its exchange holds.
    pub(super) account: Account,
    /// Bytes of bodies that the exchange has in memory.
    pub(super) bodies_held: usize,

    // What comes in.
    pub(super) heads: VecDeque<ResponseHead>,
    /// The head that is no interim one has come.
    pub(super) head_done: bool,
    /// The answer has no body whatever its length is said to be: it is one to HEAD.
    pub(super) to_head: bool,
    pub(super) data: VecDeque<Chunk>,
    /// Memory of `data`.
    pub(super) data_held: usize,
    /// Bytes of the body that have come.
    pub(super) received: u64,
    pub(super) trailers: Option<Box<Headers>>,
    pub(super) remote_ended: bool,
    /// Bytes that a declared length still expects.
    pub(super) expected: Option<u64>,
    /// Bytes that the peer may still send.
    pub(super) recv_window: i64,
    /// Bytes handed on, whose window is given back when more is asked for.
    pub(super) unreleased: u32,
    /// Bytes given back that the peer was not told of yet.
    pub(super) unannounced: u32,
    /// It has held bytes since it was marked, and none was taken.
    pub(super) is_stalled: bool,
    /// What the peer sent broke a rule; it was answered, and is told with the end of the stream.
    pub(super) malformed: bool,

    // What goes out.
    pub(super) send_window: i64,
    pub(super) piece: Chunk,
    /// Memory of `piece` in the account: counted once it has to wait.
    pub(super) piece_held: usize,
    /// Bytes moved when the account last noted them.
    pub(super) moved_noted: u64,
    pub(super) end: End,
    /// Bytes that a declared length has left.
    pub(super) left: Option<u64>,
    /// Bytes of the body that have left.
    pub(super) taken: u64,
    /// It waits in a queue for its turn to send.
    pub(super) queued: bool,
    pub(super) priority: Priority,
}

impl Stream {
    /// Makes a recycled one a fresh one.
    fn begin(&mut self, id: u32, recv_window: u32, send_window: u32) {
        let heads = std::mem::take(&mut self.heads);
        let data = std::mem::take(&mut self.data);
        *self = Stream {
            id,
            held: true,
            alive: true,
            heads,
            data,
            recv_window: recv_window.into(),
            send_window: send_window.into(),
            ..Stream::default()
        };
    }

    /// Bytes of bodies that were moved in both directions.
    pub(super) fn moved(&self) -> u64 {
        self.received + self.taken
    }

    pub(super) fn local_ended(&self) -> bool {
        matches!(self.end, End::Sent)
    }

    /// Whether something waits to be sent.
    pub(super) fn has_output(&self) -> bool {
        !self.piece.is_empty() || matches!(self.end, End::Queued(_))
    }

    /// Takes what has come and nobody will ask for; returns its bytes.
    pub(super) fn discard_input(&mut self) -> u32 {
        self.heads.clear();
        self.trailers = None;
        let bytes = self.data.iter().map(|chunk| chunk.len() as u32).sum::<u32>();
        self.data.clear();
        self.account.shrink(std::mem::take(&mut self.data_held));
        bytes
    }

    /// Drops what waits to be sent.
    pub(super) fn discard_output(&mut self) {
        self.piece = Chunk::empty();
        self.account.shrink(std::mem::take(&mut self.piece_held));
        self.end = End::Sent;
    }
}

/// Hashes stream identifiers: small numbers that come in order.
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
        // The table takes its place from low bits and its tag from high ones.
        self.0 = (self.0 ^ u64::from(id >> 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

/// All streams of a connection that are alive or held.
#[derive(Debug, Default)]
pub(super) struct Streams {
    slots: Vec<Stream>,
    free: Vec<u32>,
    /// The slots of those that are alive.
    by_id: HashMap<u32, u32, BuildHasherDefault<IdHasher>>,
}

impl Streams {
    /// Streams that are alive.
    pub(super) fn alive(&self) -> usize {
        self.by_id.len()
    }

    /// Streams that are alive or held.
    pub(super) fn held(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Begins a stream that is held by whoever asked for it.
    pub(super) fn begin(&mut self, id: u32, recv_window: u32, send_window: u32) -> StreamKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Stream::default());
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize].begin(id, recv_window, send_window);
        self.by_id.insert(id, slot);
        StreamKey { slot, id }
    }

    /// The stream with this identifier, if it is alive.
    #[inline]
    pub(super) fn find(&self, id: u32) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// Whether the stream of a key is alive; the key may be that of a stream which is gone.
    #[inline]
    pub(super) fn is_alive(&self, key: StreamKey) -> bool {
        self.slots.get(key.slot as usize).is_some_and(|stream| stream.id == key.id && stream.alive)
    }

    /// The stream in a slot.
    #[inline]
    pub(super) fn at(&mut self, slot: u32) -> &mut Stream {
        &mut self.slots[slot as usize]
    }

    /// The stream that a key was made for.
    ///
    /// # Panics
    /// If it was released.
    #[inline]
    pub(super) fn get(&mut self, key: StreamKey) -> &mut Stream {
        let stream = &mut self.slots[key.slot as usize];
        debug_assert!(stream.id == key.id && stream.held, "a key outlived its stream");
        stream
    }

    /// As [`Streams::get`], to look.
    #[inline]
    pub(super) fn peek(&self, key: StreamKey) -> &Stream {
        &self.slots[key.slot as usize]
    }

    /// Whether a stream that is alive has nothing to take, and expects more.
    pub(super) fn is_any_waiting(&self) -> bool {
        self.by_id.values().any(|slot| {
            let stream = &self.slots[*slot as usize];
            stream.held && stream.data.is_empty() && stream.unreleased == 0 && !stream.remote_ended
        })
    }

    pub(super) fn mark_stalled(&mut self) {
        for stream in &mut self.slots {
            stream.is_stalled = stream.held && (!stream.data.is_empty() || stream.unreleased > 0);
        }
    }

    pub(super) fn stalled_slots(&self) -> Vec<u32> {
        let slots = (0u32..).zip(&self.slots);
        slots.filter(|(_, stream)| stream.held && stream.is_stalled).map(|(slot, _)| slot).collect()
    }

    /// The slots of all that are alive.
    pub(super) fn alive_slots(&self) -> Vec<u32> {
        self.by_id.values().copied().collect()
    }

    /// No frame is for it any more.
    pub(super) fn bury(&mut self, slot: u32) {
        let stream = &mut self.slots[slot as usize];
        if std::mem::take(&mut stream.alive) {
            self.by_id.remove(&stream.id);
        }
        self.recycle(slot);
    }

    /// Nobody holds it any more.
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
        // A burst does not stay resident.
        if self.free.len() == self.slots.len() && self.slots.len() > KEPT_SLOTS {
            self.slots = Vec::new();
            self.free = Vec::new();
            self.by_id.shrink_to(KEPT_SLOTS);
        }
    }
}

/// Slots that an idle connection keeps.
const KEPT_SLOTS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_given_again_when_it_is_neither_alive_nor_held() {
        let mut streams = Streams::default();
        let first = streams.begin(1, 10, 20);
        streams.get(first).taken = 7;
        streams.bury(first.slot);
        assert_eq!((streams.alive(), streams.held(), streams.find(1)), (0, 1, None));
        let second = streams.begin(3, 10, 20);
        assert_ne!(first.slot, second.slot);
        streams.let_go(first.slot);
        let third = streams.begin(5, 10, 20);
        assert_eq!((third.slot, streams.get(third).taken), (first.slot, 0));
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
