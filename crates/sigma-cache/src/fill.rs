//! Storing a response in transit.

use std::sync::Arc;
use std::task::{self, Poll, ready};

use sigma_http::{BodyLength, Fault, Frame, Headers, ResponseHead};
use sigma_plugin::{BodyFilter, Context, Frames};

use crate::body::{Body, Coming, PIECE_BYTES, Piece};
use crate::disk_cache::Stream;
use crate::freshness::Freshness;
use crate::stored::Stored;
use crate::zone::{Epoch, Lead, Zone};

/// The smallest piece that waiting readers get.
const LEAST_PIECE_BYTES: usize = 4 * 1024;

/// A response to store, before its body arrives.
#[derive(Debug)]
pub struct Draft<'d> {
    /// The zone to store it in.
    pub zone: &'d Arc<Zone>,
    /// Its key.
    pub key: &'d [u8],
    /// Its head.
    pub head: &'d ResponseHead,
    /// The fields of its request.
    pub request: &'d Headers,
    /// The target of its request.
    pub resource: &'d [u8],
    /// `Vary` counts.
    pub varies: bool,
    /// Its freshness.
    pub freshness: Freshness,
    /// The length of its body.
    pub length: BodyLength,
    /// The largest body to store.
    pub most: u64,
    /// The zone's epoch at the time of the request.
    pub epoch: Epoch,
    /// Seconds since 1970.
    pub now: u64,
}

/// Stores the body in transit. A truncated body is not stored.
#[derive(Debug)]
pub struct Fill {
    keeping: Option<Keeping>,
}

#[derive(Debug)]
struct Keeping {
    zone: Arc<Zone>,
    key: Arc<[u8]>,
    epoch: Epoch,
    /// Its body is added later.
    stored: Stored,
    /// The destination of a body that is too large for memory.
    stream: Option<Stream>,
    pieces: Vec<Piece>,
    piece: Vec<u8>,
    held: u64,
    /// Bytes of the zone reserved for it.
    reserved: u64,
    most: u64,
    lead: Option<Lead>,
    now: u64,
    /// The shared body for concurrent readers, with the response as they see it.
    coming: Option<(Arc<Coming>, Arc<Stored>)>,
}

impl Fill {
    /// Stores the response of `draft`, also for requests that wait for `lead`.
    ///
    /// # Errors
    /// Returns the lead if the response cannot be stored.
    pub fn new(draft: Draft<'_>, lead: Option<Lead>) -> Result<Fill, Option<Lead>> {
        let known = match draft.length {
            BodyLength::None => Some(0),
            BodyLength::Known(bytes) => Some(bytes),
            BodyLength::Streamed => None,
            // A truncation would not be detected.
            BodyLength::UntilClose => return Err(lead),
        };
        let most = draft.most.min(draft.zone.largest_of_all());
        let Draft { request, resource, .. } = draft;
        let Some(stored) = Stored::new(draft.head, draft.freshness, request, resource, draft.varies) else {
            return Err(lead);
        };
        let length = known.unwrap_or(0);
        if length > most {
            return Err(lead);
        }
        let key = draft.key.into();
        let (mut reserved, mut stream) = (0, None);
        if length <= draft.zone.largest() && draft.zone.hold(length) {
            reserved = length;
        } else {
            stream = draft.zone.stream(&key, &stored, draft.epoch, draft.now);
            if stream.is_none() {
                return Err(lead);
            }
        }
        // A body of unknown length may turn out too long: readers must not share one that may not be stored. Nor one
        // that goes to a disk.
        let shared = lead.as_ref().zip(known).filter(|_| stream.is_none());
        let coming = shared.map(|(lead, length)| {
            let coming = Arc::new(Coming::default());
            let body = Body::Coming(Arc::clone(&coming), length);
            let shared = Arc::new(stored.with_body(body));
            lead.share(Arc::clone(&shared));
            (coming, shared)
        });
        let keeping = Keeping {
            zone: Arc::clone(draft.zone),
            key,
            epoch: draft.epoch,
            stored,
            stream,
            pieces: Vec::new(),
            piece: Vec::new(),
            held: 0,
            reserved,
            most,
            lead,
            now: draft.now,
            coming,
        };
        Ok(Fill { keeping: Some(keeping) })
    }

    /// Returns the response as others see it already, if they do.
    pub fn shared(&self) -> Option<Arc<Stored>> {
        let (_, shared) = self.keeping.as_ref()?.coming.as_ref()?;
        Some(Arc::clone(shared))
    }

    /// Handles the next frame of the body.
    pub fn see(&mut self, frame: &Frame) {
        match frame {
            Frame::Data(data) => self.take(data),
            Frame::End | Frame::Trailers(_) => {
                if let Some(keeping) = self.keeping.take() {
                    keeping.keep();
                }
            }
        }
    }

    /// Converts it to a filter; it must be the first one.
    pub fn filter(self) -> Box<dyn BodyFilter> {
        Box::new(self)
    }

    fn take(&mut self, data: &[u8]) {
        let Some(keeping) = &mut self.keeping else { return };
        if !keeping.take(data) {
            let (lead, now) = (keeping.lead.take(), keeping.now);
            // Later ones will be too long as well; a disk that was behind may be fast enough then.
            let is_too_long = keeping.held >= keeping.most;
            self.keeping = None;
            match lead {
                Some(lead) if is_too_long => lead.part(now),
                Some(lead) => lead.fail(now),
                None => {}
            }
        }
    }
}

impl Keeping {
    /// Adds bytes; returns false if it became too long, or lost its place.
    fn take(&mut self, data: &[u8]) -> bool {
        self.held += data.len() as u64;
        if self.held > self.most {
            return false;
        }
        let is_in_memory =
            self.stream.is_none() && self.held <= self.zone.largest() && self.reserve(self.held);
        if !is_in_memory && self.stream.is_none() && !self.spill() {
            return false;
        }
        let mut data = data;
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(PIECE_BYTES - self.piece.len()));
            self.piece.extend_from_slice(now);
            data = later;
            if self.piece.len() == PIECE_BYTES && !self.push() {
                return false;
            }
        }
        let is_awaited = || self.coming.as_ref().is_some_and(|(coming, _)| coming.is_awaited());
        if self.piece.len() >= LEAST_PIECE_BYTES && is_awaited() {
            self.push();
        }
        true
    }

    /// Moves a body that is too large for memory to the disk, with the bytes so far. Returns false without a disk.
    fn spill(&mut self) -> bool {
        if self.coming.is_some() {
            return false;
        }
        let Some(stream) = self.zone.stream(&self.key, &self.stored, self.epoch, self.now) else {
            return false;
        };
        let taken = std::mem::take(&mut self.pieces).into_iter().all(|piece| stream.push(piece));
        self.zone.let_go(std::mem::take(&mut self.reserved));
        self.stream = Some(stream);
        taken
    }

    /// Reserves memory for this total; returns false if it is full.
    fn reserve(&mut self, held: u64) -> bool {
        let more = held.saturating_sub(self.reserved);
        if more > 0 && !self.zone.hold(more) {
            return false;
        }
        self.reserved += more;
        true
    }

    /// Adds a full piece, or the last one. Returns false if the response lost its place.
    fn push(&mut self) -> bool {
        let piece = Piece::from(&self.piece[..]);
        self.piece.clear();
        if let Some(stream) = &self.stream {
            return stream.push(piece);
        }
        if let Some((coming, _)) = &self.coming {
            coming.push(piece.clone());
        }
        self.pieces.push(piece);
        true
    }

    /// Stores the complete response.
    fn keep(mut self) {
        if !self.piece.is_empty() && !self.push() {
            return;
        }
        if let Some(stream) = self.stream.take() {
            self.zone.supersede(&self.key, &self.stored);
            return stream.end(self.stored.clone(), Box::new(self.lead.take()));
        }
        if let Some((coming, _)) = self.coming.take() {
            coming.end(true);
        }
        self.stored.body = Body::whole(std::mem::take(&mut self.pieces));
        self.zone.insert(&self.key, self.stored.clone(), self.epoch, self.now);
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.zone.let_go(self.reserved);
        if let Some((coming, _)) = &self.coming {
            coming.end(false);
        }
    }
}

impl BodyFilter for Fill {
    fn length(&self, length: BodyLength) -> BodyLength {
        length
    }

    fn poll_frame(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        let frame = ready!(input.poll_frame(ctx, task));
        match &frame {
            Ok(frame) => self.see(frame),
            Err(_) => self.keeping = None,
        }
        Poll::Ready(frame)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sigma_http::Chunk;

    use super::*;
    use crate::body::tests::all_of;

    /// Returns the stored bytes of a body in these pieces, with known or unknown length; None if it was not stored.
    /// Also returns the bytes that a concurrent reader got.
    fn passed(pieces: &[Vec<u8>], is_known: bool, is_whole: bool) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let zone = Arc::new(Zone::new(1 << 20));
        let mut head = ResponseHead::default();
        head.start(200);
        let length: usize = pieces.iter().map(Vec::len).sum();
        let draft = Draft {
            zone: &zone,
            key: b"k",
            head: &head,
            request: &Headers::default(),
            resource: b"h/a",
            varies: true,
            freshness: Freshness {
                born: 0,
                lifetime: 9,
                while_revalidating: 0,
                if_error: 0,
                never_stale: false,
            },
            length: if is_known { BodyLength::Known(length as u64) } else { BodyLength::Streamed },
            most: 1 << 18,
            epoch: zone.epoch(b"k"),
            now: 0,
        };
        let lead = zone.lead(b"k", 0, 0).unwrap();
        let Ok(mut fill) = Fill::new(draft, Some(lead)) else { return (None, None) };
        let shared = fill.shared().map(|shared| shared.body.read(0, length as u64));
        for piece in pieces {
            fill.see(&Frame::Data(Chunk::copy_of(piece)));
        }
        if is_whole {
            fill.see(&Frame::End);
        }
        drop(fill);
        assert!(
            zone.lead(b"k", 0, 0).is_ok() && zone.hold(1 << 20),
            "the question is over, and nothing is set aside"
        );
        let kept = zone.find(b"k", &Headers::default());
        let kept = kept.map(|stored| all_of(stored.body.read(0, stored.body.length())).unwrap());
        (kept, shared.map(|reader| all_of(reader).unwrap_or_else(|part| part)))
    }

    proptest! {
        /// In any pieces, a complete body is stored unchanged, and a truncated one is not stored.
        #[test]
        fn stored_bytes_match_the_body(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40_000), 0..6),
            is_known: bool,
            is_whole: bool,
        ) {
            let whole = pieces.concat();
            let fits = whole.len() <= 1 << 18;
            let (kept, read) = passed(&pieces, is_known, is_whole);
            prop_assert_eq!(kept, (is_whole && fits).then(|| whole.clone()));
            if let Some(read) = read {
                let is_right = if is_whole { read == whole } else { whole.starts_with(&read) };
                prop_assert!(is_right, "{} of {} bytes", read.len(), whole.len());
            }
        }
    }
}
