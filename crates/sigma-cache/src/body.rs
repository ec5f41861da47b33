//! Response bodies in memory: complete ones, and bodies that are still arriving.

use std::future::Future;
use std::io;
use std::ops::{Deref, Range};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll, Waker};

use sigma_http::Chunk;
use sigma_net::shared_file::SharedFile;
use sigma_plugin::{BodySource, FilePart};
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

/// The length of a body from which on it is kept in a file in memory, so that the kernel sends it without a copy.
const FILED_FROM: u64 = 64 * 1024;

/// A part of a body.
#[derive(Debug, Clone)]
pub enum Piece {
    /// In ordinary memory.
    Bytes(Arc<[u8]>),
    /// A window of a file in memory that has the whole body.
    Filed(Arc<SharedFile>, Range<usize>),
}

impl Piece {
    fn chunk(&self, window: Range<usize>) -> Chunk {
        // A stored piece goes to the socket without a copy.
        match self {
            Piece::Bytes(bytes) => Chunk::shared(Arc::clone(bytes), window),
            Piece::Filed(file, place) => {
                let window = place.start + window.start..place.start + window.end;
                Chunk::foreign(Arc::<SharedFile>::clone(file), window)
            }
        }
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Piece::Bytes(bytes) => bytes,
            Piece::Filed(file, place) => &(**file).as_ref()[place.clone()],
        }
    }
}

impl From<&[u8]> for Piece {
    fn from(bytes: &[u8]) -> Piece {
        Piece::Bytes(bytes.into())
    }
}

impl Body {
    /// Returns a body with these bytes.
    pub fn of(bytes: &[u8]) -> Body {
        Body::Whole(bytes.chunks(PIECE_BYTES).map(Piece::from).collect())
    }

    /// Returns a body of all these pieces. A large one moves to a file in memory, if the system gives one.
    pub(crate) fn whole(pieces: Vec<Piece>) -> Body {
        let length: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let is_large = length >= FILED_FROM;
        let file = is_large.then(|| SharedFile::of(pieces.iter().map(|piece| &**piece))).flatten();
        let Some(file) = file.map(Arc::new) else { return Body::Whole(pieces.into()) };
        let whole = (*file).as_ref().len();
        let starts = (0..whole).step_by(PIECE_BYTES);
        let place = |start: usize| start..whole.min(start + PIECE_BYTES);
        Body::Whole(starts.map(|start| Piece::Filed(Arc::clone(&file), place(start))).collect())
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
            return Poll::Ready(Ok(piece.clone()));
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
                    return Poll::Ready(Ok(Some(piece.chunk(window))));
                }
            }
            let piece = task::ready!(self.poll_next(task))?;
            let skipped = self.skip.min(piece.len() as u64);
            self.skip -= skipped;
            self.piece = Some(piece);
            self.taken = skipped as usize;
        }
    }

    fn file_part(&self) -> Option<FilePart<'_>> {
        let Body::Whole(pieces) = &self.body else { return None };
        let Some(Piece::Filed(file, _)) = pieces.first() else { return None };
        // All pieces but the last one have one size; before the first piece, `skip` counts from the beginning.
        let at = match &self.piece {
            Some(_) => (self.next - 1) * PIECE_BYTES as u64 + self.taken as u64,
            None => self.next * PIECE_BYTES as u64 + self.skip,
        };
        Some(FilePart { file: file.file(), offset: at, length: self.left })
    }

    fn pass(&mut self, bytes: u64) {
        let Some(part) = self.file_part() else { return };
        let at = part.offset + bytes.min(part.length);
        self.left -= bytes.min(self.left);
        self.next = at / PIECE_BYTES as u64;
        self.skip = at % PIECE_BYTES as u64;
        self.piece = None;
        self.taken = 0;
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

    /// Reads the rest of a body from its file, `step` bytes at a time.
    fn from_file(mut reader: Reader, step: usize) -> Vec<u8> {
        use std::os::unix::fs::FileExt;
        let mut all = Vec::new();
        while let Some(part) = reader.file_part().filter(|part| part.length > 0) {
            let mut bytes = vec![0; step.min(part.length as usize)];
            let file = std::fs::File::from(part.file.try_clone_to_owned().unwrap());
            file.read_exact_at(&mut bytes, part.offset).unwrap();
            reader.pass(bytes.len() as u64);
            all.append(&mut bytes);
        }
        all
    }

    #[test]
    fn a_large_body_is_in_a_file() {
        let bytes: Vec<u8> = (0..PIECE_BYTES * 3 + 5).map(|n| (n % 251) as u8).collect();
        // Received in pieces of any size.
        let body = Body::whole(bytes.chunks(10_000).map(Piece::from).collect());
        assert_eq!((body.length(), body.held()), (bytes.len() as u64, bytes.len() as u64));
        let piece = PIECE_BYTES as u64;
        for (start, length) in [(0, body.length()), (5, piece), (piece - 1, piece + 2), (piece * 3, 5)] {
            let part = &bytes[start as usize..(start + length) as usize];
            assert!(all_of(body.read(start, length)).unwrap() == part, "{start} {length}");
            for step in [999, PIECE_BYTES, 3 * PIECE_BYTES] {
                assert!(from_file(body.read(start, length), step) == part, "{start} {length} {step}");
            }
            // Some of it by each way.
            let (mut reader, mut task) = (body.read(start, length), task::Context::from_waker(Waker::noop()));
            let Poll::Ready(Ok(Some(first))) = reader.poll_piece(&mut task) else { panic!("a piece") };
            let (mut all, passed) = (first.to_vec(), (length as usize - first.len()).min(700));
            all.extend_from_slice(&part[first.len()..first.len() + passed]);
            reader.pass(passed as u64);
            all.extend(all_of(reader).unwrap());
            assert!(all == part, "{start} {length}");
        }
        assert!(Body::whole(vec![Piece::from(&b"small"[..])]).read(0, 5).file_part().is_none());
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
