//! A TLS session over a connected stream.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice};
use std::task::{Context, Poll, ready};

use super::buffer::Buffer;
use super::facts::Facts;
use super::session::{RECORD_BYTES, Session};
use crate::stream::Stream;

/// The largest plaintext of one write. It limits our memory for a peer that does not read.
const WRITE_BYTES: usize = 4 * RECORD_BYTES;

/// Records up to this size wait for the next write to share its system call.
const DELAYED_BYTES: usize = 4 * 1024;

/// The room for one read from the socket: at least a whole record.
const READ_ROOM: usize = RECORD_BYTES + 256 + 5;

/// An encrypted stream after its handshake.
pub struct TlsStream {
    socket: Stream,
    session: Session,
    facts: Facts,
}

impl TlsStream {
    pub(super) fn new(socket: Stream, session: Session, facts: Facts) -> TlsStream {
        let mut stream = TlsStream { socket, session, facts };
        stream.session.rest();
        stream
    }

    /// Returns the result of the handshake.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Returns the stream below.
    pub fn socket(&self) -> &Stream {
        &self.socket
    }

    /// Returns the memory of its buffers.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.session.held_bytes()
    }

    /// Ends the wait of early requests once the client has completed the handshake.
    fn note_handshake(&self) {
        if let Some(early) = &self.facts.early
            && !early.is_complete()
            && !self.session.common().is_handshaking()
        {
            early.complete();
        }
    }

    /// Sends bytes unencrypted.
    #[cfg(test)]
    pub(super) async fn write_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        tokio::io::AsyncWriteExt::write_all(&mut self.socket, bytes).await
    }

    // Out of line, so that the paths of plain streams stay short.
    #[inline(never)]
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            let read = self.session.read(buf);
            self.note_handshake();
            match read {
                Ok(0) if self.session.peer_closed() => return Poll::Ready(Ok(0)),
                Ok(0) => {}
                Ok(n) => return Poll::Ready(Ok(n)),
                Err(error) => {
                    // The alert may not reach the peer; the connection ends either way.
                    let _ = poll_drain(&mut self.socket, &mut self.session, cx);
                    return Poll::Ready(Err(invalid(error)));
                }
            }
            match poll_fill(&mut self.socket, &mut self.session, cx) {
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(Err(io::Error::new(
                        ErrorKind::UnexpectedEof,
                        "the peer closed the connection without the closing alert of TLS",
                    )));
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    // Responses of the session itself, such as to a key update.
                    if let Poll::Ready(Err(error)) = poll_drain(&mut self.socket, &mut self.session, cx) {
                        return Poll::Ready(Err(error));
                    }
                    self.session.rest();
                    return Poll::Pending;
                }
            }
        }
    }

    #[inline(never)]
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    #[inline(never)]
    pub(crate) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.session.outgoing.len() > DELAYED_BYTES {
            ready!(poll_drain(&mut self.socket, &mut self.session, cx))?;
        }
        let mut taken = 0;
        let mut rest = Slices { bufs, offset: 0 };
        while taken < WRITE_BYTES {
            let n = match rest.first() {
                None => break,
                Some(slice) if slice.len() >= RECORD_BYTES || rest.is_last() => {
                    let n = slice.len().min(WRITE_BYTES - taken);
                    encrypt(&mut self.session, &slice[..n])?;
                    n
                }
                Some(_) => {
                    // Small pieces share a record.
                    let mut record = Buffer::default();
                    let n = rest.gather(&mut record.spare(RECORD_BYTES)[..RECORD_BYTES]);
                    record.grow(n);
                    encrypt(&mut self.session, record.filled())?;
                    n
                }
            };
            rest.advance(n);
            taken += n;
        }
        // Accepted bytes count as written; those without room in the socket leave with the next write or flush.
        if let Poll::Ready(Err(error)) = poll_drain(&mut self.socket, &mut self.session, cx) {
            return Poll::Ready(Err(error));
        }
        self.session.outgoing.rest();
        Poll::Ready(Ok(taken))
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_drain(&mut self.socket, &mut self.session, cx)
    }

    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.session.close();
        ready!(poll_drain(&mut self.socket, &mut self.session, cx))?;
        self.socket.poll_shutdown(cx)
    }
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The session holds keys.
        f.debug_struct("TlsStream")
            .field("socket", &self.socket)
            .field("facts", &self.facts)
            .finish_non_exhaustive()
    }
}

/// Reads records from the socket; 0 is the end of the stream.
pub(super) fn poll_fill(
    socket: &mut Stream,
    session: &mut Session,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    if session.is_stuffed() {
        // Only a handshake message can span so many records.
        return Poll::Ready(Err(io::Error::new(
            ErrorKind::InvalidData,
            "a handshake message of TLS is too large",
        )));
    }
    let n = ready!(socket.poll_read(cx, session.incoming.spare(READ_ROOM)))?;
    session.incoming.grow(n);
    Poll::Ready(Ok(n))
}

/// Writes the outgoing records to the socket; ready when all are written.
pub(super) fn poll_drain(
    socket: &mut Stream,
    session: &mut Session,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    while !session.outgoing.is_empty() {
        match ready!(socket.poll_write(cx, session.outgoing.filled()))? {
            0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
            n => session.outgoing.advance(n),
        }
    }
    Poll::Ready(Ok(()))
}

fn encrypt(session: &mut Session, plaintext: &[u8]) -> io::Result<()> {
    match session.write(plaintext) {
        Ok(true) => Ok(()),
        Ok(false) => Err(io::Error::new(ErrorKind::BrokenPipe, "the TLS session is closed")),
        Err(error) => Err(invalid(error)),
    }
}

/// Converts a broken protocol rule to an error of the stream.
pub(super) fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// The rest of a list of slices.
struct Slices<'a> {
    bufs: &'a [IoSlice<'a>],
    /// Bytes of the first slice that are done.
    offset: usize,
}

impl<'a> Slices<'a> {
    fn first(&mut self) -> Option<&'a [u8]> {
        while let Some((first, rest)) = self.bufs.split_first() {
            if self.offset < first.len() {
                return Some(&first[self.offset..]);
            }
            self.offset -= first.len();
            self.bufs = rest;
        }
        None
    }

    fn is_last(&self) -> bool {
        self.bufs.len() == 1
    }

    fn gather(&self, into: &mut [u8]) -> usize {
        let (mut filled, mut offset) = (0, self.offset);
        for slice in self.bufs {
            let rest = &slice[offset..];
            let n = rest.len().min(into.len() - filled);
            into[filled..filled + n].copy_from_slice(&rest[..n]);
            filled += n;
            offset = 0;
        }
        filled
    }

    /// Advances, possibly beyond the first slice.
    fn advance(&mut self, n: usize) {
        self.offset += n;
    }
}
