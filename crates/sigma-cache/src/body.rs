//! Response bodies in memory: complete ones, and bodies that are still arriving.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll, Waker};

use sigma_http::Chunk;
use sigma_plugin::BodySource;
use tokio::sync::oneshot;

/// The size of one piece; clients get copies out of pieces.
pub const PIECE_BYTES: usize = 64 * 1024;

/// The body of a response. A clone is a handle.
#[derive(Debug, Clone)]
pub enum Body {
    /// All of it is there.
    Whole(Arc<[Piece]>),
    /// It is still arriving, with this length.
    Coming(Arc<Coming>, u64),
    /// It is stored elsewhere, and too large for memory.
    Elsewhere(Arc<dyn Blocks>),
}

/// A body that is read block by block from its storage.
pub trait Blocks: std::fmt::Debug + Send + Sync {
    /// Returns its length.
    fn length(&self) -> u64;

    /// Reads a block: all but the last one have [`PIECE_BYTES`].
    fn read(self: Arc<Self>, number: u64) -> Reading;
}

/// A block that is being read.
pub type Reading = oneshot::Receiver<io::Result<Piece>>;

/// A part of a body.
pub type Piece = Arc<[u8]>;

impl Body {
    /// Returns a body with these bytes.
    pub fn of(bytes: &[u8]) -> Body {
        Body::Whole(bytes.chunks(PIECE_BYTES).map(Piece::from).collect())
    }

    /// Returns its length.
    pub fn length(&self) -> u64 {
        match self {
            Body::Whole(_) => self.held(),
            Body::Coming(_, length) => *length,
            Body::Elsewhere(blocks) => blocks.length(),
        }
    }

    /// Returns its own memory in bytes.
    pub(crate) fn held(&self) -> u64 {
        match self {
            Body::Whole(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
            Body::Coming(..) | Body::Elsewhere(_) => 0,
        }
    }

    /// Reads `length` bytes from `start` on; both must be within it.
    pub fn read(&self, start: u64, length: u64) -> Reader {
        // Blocks have one size, so that earlier ones need not be read.
        let block = PIECE_BYTES as u64;
        let (next, skip) = match self {
            Body::Elsewhere(_) => (start / block, start % block),
            Body::Whole(_) | Body::Coming(..) => (0, start),
        };
        Reader { body: self.clone(), next, piece: None, taken: 0, skip, left: length, reading: None }
    }
}

/// A body that is still arriving, with concurrent readers.
#[derive(Debug, Default)]
pub struct Coming {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pieces: Vec<Piece>,
    /// The end, complete or truncated; None before it.
    end: Option<bool>,
    readers: Vec<Waker>,
}

impl Coming {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under the lock can leave the list half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a reader waits for more.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.lock().readers.is_empty()
    }

    /// Adds the next piece.
    pub(crate) fn push(&self, piece: Piece) {
        let mut state = self.lock();
        state.pieces.push(piece);
        tell(state);
    }

    /// Ends the body, complete or truncated.
    pub(crate) fn end(&self, is_whole: bool) {
        let mut state = self.lock();
        state.end.get_or_insert(is_whole);
        tell(state);
    }

    fn poll_piece(&self, number: usize, task: &mut task::Context<'_>) -> Poll<io::Result<Piece>> {
        let mut state = self.lock();
        if let Some(piece) = state.pieces.get(number) {
            return Poll::Ready(Ok(Arc::clone(piece)));
        }
        if state.end.is_some() {
            return Poll::Ready(Err(io::Error::other("the response from the node is incomplete")));
        }
        if !state.readers.iter().any(|known| known.will_wake(task.waker())) {
            state.readers.push(task.waker().clone());
        }
        Poll::Pending
    }
}

fn tell(mut state: MutexGuard<'_, State>) {
    let readers = std::mem::take(&mut state.readers);
    drop(state);
    readers.into_iter().for_each(Waker::wake);
}

/// A reader of a part of a body.
#[derive(Debug)]
pub struct Reader {
    body: Body,
    /// The number of the piece after `piece`.
    next: u64,
    piece: Option<Piece>,
    /// Bytes of `piece` that were read.
    taken: usize,
    /// Bytes before the first wanted one.
    skip: u64,
    left: u64,
    /// The piece with the number `next`, from its storage.
    reading: Option<Reading>,
}

impl Reader {
    fn poll_next(&mut self, task: &mut task::Context<'_>) -> Poll<io::Result<Piece>> {
        let number = usize::try_from(self.next).unwrap_or(usize::MAX);
        let piece = match &self.body {
            Body::Whole(pieces) => pieces.get(number).cloned().ok_or_else(|| {
                // A stored body has its declared length.
                io::Error::other("a stored response is shorter than it was")
            })?,
            Body::Coming(coming, _) => task::ready!(coming.poll_piece(number, task))?,
            Body::Elsewhere(blocks) => {
                let reading = self.reading.get_or_insert_with(|| Arc::clone(blocks).read(self.next));
                let piece = task::ready!(Pin::new(reading).poll(task));
                self.reading = None;
                let piece = piece.map_err(io::Error::other)??;
                // The next one is read while this one is sent.
                if self.left > (piece.len() as u64).saturating_sub(self.skip) {
                    self.reading = Some(Arc::clone(blocks).read(self.next + 1));
                }
                piece
            }
        };
        self.next += 1;
        Poll::Ready(Ok(piece))
    }
}

impl BodySource for Reader {
    fn poll_piece(&mut self, task: &mut task::Context<'_>) -> Poll<io::Result<Option<Chunk>>> {
        loop {
            if self.left == 0 {
                return Poll::Ready(Ok(None));
            }
            if let Some(piece) = &self.piece {
                let end = usize::try_from(self.left)
                    .map_or(piece.len(), |left| piece.len().min(self.taken.saturating_add(left)));
                if self.taken < end {
                    let window = self.taken..end;
                    self.left -= window.len() as u64;
                    self.taken = end;
                    // A stored piece goes to the socket without a copy.
                    return Poll::Ready(Ok(Some(Chunk::shared(Arc::clone(piece), window))));
                }
            }
            let piece = task::ready!(self.poll_next(task))?;
            let skipped = self.skip.min(piece.len() as u64);
            self.skip -= skipped;
            (self.piece, self.taken) = (Some(piece), skipped as usize);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn all_of(mut reader: Reader) -> Result<Vec<u8>, Vec<u8>> {
        let (mut all, mut task) = (Vec::new(), task::Context::from_waker(Waker::noop()));
        loop {
            match reader.poll_piece(&mut task) {
                Poll::Ready(Ok(Some(chunk))) => all.extend_from_slice(&chunk),
                Poll::Ready(Ok(None)) => return Ok(all),
                Poll::Ready(Err(_)) | Poll::Pending => return Err(all),
            }
        }
    }

    #[test]
    fn any_part_of_any_body() {
        let bytes: Vec<u8> = (0..PIECE_BYTES * 2 + 5).map(|n| (n % 251) as u8).collect();
        let body = Body::of(&bytes);
        assert_eq!(body.length(), bytes.len() as u64);
        let piece = PIECE_BYTES as u64;
        for (start, length) in
            [(0, 0), (0, 1), (0, body.length()), (5, piece), (piece - 1, 2), (piece, piece), (piece * 2, 5)]
        {
            let part = &bytes[start as usize..(start + length) as usize];
            assert!(all_of(body.read(start, length)).unwrap() == part, "{start} {length}");
        }
        assert_eq!(all_of(Body::of(b"").read(0, 0)), Ok(Vec::new()));
    }

    #[test]
    fn an_arriving_body_is_read_as_far_as_possible() {
        let coming = Arc::new(Coming::default());
        let body = Body::Coming(Arc::clone(&coming), 6);
        assert_eq!(all_of(body.read(0, 6)), Err(Vec::new()));
        assert!(coming.is_awaited());
        coming.push(b"abc"[..].into());
        assert!(!coming.is_awaited());
        assert_eq!(all_of(body.read(1, 5)), Err(b"bc".to_vec()));
        assert_eq!(all_of(body.read(1, 2)), Ok(b"bc".to_vec()));
        coming.push(b"def"[..].into());
        coming.end(true);
        assert_eq!(all_of(body.read(2, 4)), Ok(b"cdef".to_vec()));
        let broken = Arc::new(Coming::default());
        broken.end(false);
        assert_eq!(all_of(Body::Coming(broken, 1).read(0, 1)), Err(Vec::new()));
    }
}
