//! Moves bytes between two streams, both ways, in one task. The end of one direction is forwarded, and the other
//! direction continues: protocols rely on it.

use std::io;
use std::task::{Context, Poll, ready};

use sigma_http::Chunk;
use sigma_net::Stream;
use sigma_net::splice::Pipe;
use sigma_plugin::pace::{Direction, Paces};

use super::filters::{Filters, Next};

/// Pieces that one direction moves before others get their turn.
const TURNS: usize = 16;

/// Bytes after which a direction between plain sockets is spliced, if they come in large pieces: then the saved
/// copies are worth a pipe and its system calls.
const SPLICED_AFTER: u64 = 256 * 1024;

/// Size of a piece from which on more is expected, and below which it is no longer.
const BULK_BEGUN: usize = 16 * 1024;
const BULK_LEFT: usize = 4 * 1024;

/// The side that broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    Downstream,
    Upstream,
    /// A filter
    Filter,
}

/// Two streams, and the bytes between them.
pub(super) struct Relay {
    down: Stream,
    up: Stream,
    to_up: RelayDirection,
    to_down: RelayDirection,
    /// The rate limits of the bytes.
    paces: Option<Box<Paces>>,
    filters: Option<Box<Filters>>,
}

/// One direction.
#[derive(Default)]
struct RelayDirection {
    /// Read and not yet written, if it is in memory.
    chunk: Chunk,
    /// The same, in a pipe.
    pipe: Option<Pipe>,
    /// Much data comes: it is spliced while pipes are available.
    is_bulk: bool,
    ended: bool,
    /// It ends when there is nothing to move.
    leaving: bool,
    /// The end was forwarded.
    closed: bool,
    /// Bytes that were written.
    moved: u64,
    /// Bytes of `chunk` that may be written; unused without a rate limit.
    passing: usize,
}

/// The streams of one direction.
struct Sides<'s> {
    from: &'s mut Stream,
    to: &'s mut Stream,
    /// The reason if reading fails.
    broken: Broken,
}

/// The rate limit of one direction, if it has one.
type Slowed<'s> = Option<(&'s mut Paces, Direction)>;

impl Relay {
    /// Returns a relay between a client, of which `early` was read, and a node.
    pub(super) fn new(down: Stream, up: Stream, early: Chunk, paces: Option<Box<Paces>>) -> Relay {
        Relay {
            down,
            up,
            to_up: RelayDirection { chunk: early, ..RelayDirection::default() },
            to_down: RelayDirection::default(),
            paces,
            filters: None,
        }
    }

    /// Lets the bytes pass through filters. Call it before the first poll.
    pub(super) fn filtered(mut self, filters: Option<Box<Filters>>) -> Relay {
        self.filters = filters;
        if let Some(filters) = &mut self.filters {
            let early = std::mem::take(&mut self.to_up.chunk);
            if !early.is_empty() {
                filters.push(Direction::ToNode, &early);
            }
        }
        self
    }

    /// Returns true if bytes wait for a rate limit, and not for either side.
    pub(super) fn is_slowed(&self) -> bool {
        let waits = |direction| self.paces.as_ref().is_some_and(|paces| paces.is_waiting(direction));
        waits(Direction::ToNode) || waits(Direction::ToClient)
    }

    /// Returns the bytes that have moved: to the node, and to the client.
    pub(super) fn moved(&self) -> (u64, u64) {
        (self.to_up.moved, self.to_down.moved)
    }

    /// Ready when both sides have ended, or one is broken.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        if self.filters.is_some() {
            return self.poll_filtered(cx);
        }
        let Relay { down, up, to_up, to_down, paces, .. } = self;
        let is_last = to_down.is_over();
        let slowed = paces.as_deref_mut().map(|paces| (paces, Direction::ToNode));
        let to_node = to_up.poll(down, up, is_last, slowed, cx).map_err(|_| Broken::Downstream)?;
        let is_last = to_up.is_over();
        let slowed = paces.as_deref_mut().map(|paces| (paces, Direction::ToClient));
        let to_client = to_down.poll(up, down, is_last, slowed, cx).map_err(|_| Broken::Upstream)?;
        match (to_node, to_client) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }

    /// As [`Relay::poll`], through the filters.
    fn poll_filtered(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let Relay { down, up, to_up, to_down, paces, filters } = self;
        let Some(filters) = filters else { return Poll::Ready(Ok(())) };
        let sides = Sides { from: &mut *down, to: &mut *up, broken: Broken::Downstream };
        let slowed = paces.as_deref_mut().map(|paces| (paces, Direction::ToNode));
        let to_node = to_up.poll_filtered(sides, filters, Direction::ToNode, slowed, cx)?;
        let sides = Sides { from: up, to: down, broken: Broken::Upstream };
        let slowed = paces.as_deref_mut().map(|paces| (paces, Direction::ToClient));
        let to_client = to_down.poll_filtered(sides, filters, Direction::ToClient, slowed, cx)?;
        match (to_node, to_client) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }

    /// Ends the session for the gateway. The node sees the end first: its last bytes still reach the client.
    pub(super) fn say_goodbye(&mut self) {
        self.to_up.leaving = true;
    }

    /// Ends the session between two pieces of the node's bytes; returns false if that does not happen in time.
    pub(super) fn end(&mut self, cx: &mut Context<'_>) -> bool {
        self.to_down.leaving = true;
        matches!(self.poll(cx), Poll::Ready(Ok(())))
    }

    /// Stops reading from both sides, and sends both the end; returns false if some bytes cannot be written now.
    pub(super) fn part(&mut self, cx: &mut Context<'_>) -> bool {
        (self.to_up.ended, self.to_down.ended) = (true, true);
        matches!(self.poll(cx), Poll::Ready(Ok(())))
    }

    /// Returns the client's side, after the end.
    pub(super) fn into_down(self) -> Stream {
        self.down
    }

    /// Resets both sides.
    pub(super) fn reset(self) {
        self.down.reset();
        self.up.reset();
    }
}

impl RelayDirection {
    /// Whether the side that it comes from has said all, and the other one has it.
    fn is_over(&self) -> bool {
        self.closed && !self.leaving && self.ended
    }

    /// Moves the available bytes. Ready when the end was forwarded, or the receiver is gone: its own bytes from
    /// before still reach the source. With `is_last`, both streams are dropped then.
    ///
    /// # Errors
    /// Returns the error of reading.
    fn poll(
        &mut self,
        from: &mut Stream,
        to: &mut Stream,
        is_last: bool,
        mut slowed: Slowed<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        for _ in 0..TURNS {
            if self.closed {
                return Poll::Ready(Ok(()));
            }
            if !ready!(self.poll_give(to, &mut slowed, cx)) {
                self.closed = true;
                continue;
            }
            if self.ended {
                // A peer that has left needs no more.
                let _ = ready!(to.poll_flush(cx));
                if !(is_last && to.ends_when_dropped()) {
                    let _ = ready!(to.poll_shutdown(cx));
                }
                self.closed = true;
                continue;
            }
            match self.poll_take(from, to, slowed.is_none(), cx) {
                Poll::Ready(n) => self.ended = n? == 0,
                // The kernel resets a peer that sends more.
                Poll::Pending if self.leaving => self.ended = true,
                Poll::Pending => {
                    // Whether it has left or not, the only choice is to wait.
                    self.closed = matches!(to.poll_flush(cx), Poll::Ready(Err(_)));
                    return if self.closed { Poll::Ready(Ok(())) } else { Poll::Pending };
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// As [`RelayDirection::poll`], through the filters.
    ///
    /// # Errors
    /// Returns an error if reading fails, or a filter.
    fn poll_filtered(
        &mut self,
        Sides { from, to, broken }: Sides<'_>,
        filters: &mut Filters,
        direction: Direction,
        mut slowed: Slowed<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Broken>> {
        for _ in 0..TURNS {
            if self.closed {
                return Poll::Ready(Ok(()));
            }
            if !ready!(self.poll_give(to, &mut slowed, cx)) {
                self.closed = true;
                continue;
            }
            if self.ended {
                // A peer that has left needs no more.
                let _ = ready!(to.poll_flush(cx));
                let _ = ready!(to.poll_shutdown(cx));
                self.closed = true;
                continue;
            }
            match filters.poll(direction, cx) {
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Broken::Filter)),
                Poll::Ready(Ok(Next::Piece(piece))) => {
                    self.chunk = piece;
                    continue;
                }
                Poll::Ready(Ok(Next::End)) => {
                    self.ended = true;
                    continue;
                }
                Poll::Ready(Ok(Next::Read)) => match filters.poll_take(direction, from, cx) {
                    Poll::Ready(read) => {
                        read.map_err(|_| broken)?;
                        continue;
                    }
                    Poll::Pending => {}
                },
                Poll::Pending => {}
            }
            self.ended = self.leaving;
            if !self.ended {
                self.closed = matches!(to.poll_flush(cx), Poll::Ready(Err(_)));
                return if self.closed { Poll::Ready(Ok(())) } else { Poll::Pending };
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes the bytes that were read; returns false if the receiver is gone.
    fn poll_give(&mut self, to: &mut Stream, slowed: &mut Slowed<'_>, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            let passing = match slowed {
                Some((paces, direction)) if !self.chunk.is_empty() => {
                    if self.passing == 0 {
                        let polled = paces.poll_pass(*direction, self.chunk.len(), cx);
                        let Poll::Ready(passing) = polled else {
                            // Earlier bytes leave meanwhile.
                            let is_gone = matches!(to.poll_flush(cx), Poll::Ready(Err(_)));
                            return if is_gone { Poll::Ready(false) } else { Poll::Pending };
                        };
                        self.passing = passing;
                    }
                    self.passing
                }
                _ => self.chunk.len(),
            };
            let written = match &mut self.pipe {
                _ if !self.chunk.is_empty() => ready!(to.poll_write(cx, &self.chunk[..passing])),
                Some(pipe) if pipe.held() > 0 => ready!(to.poll_splice_from(cx, pipe)),
                _ => return Poll::Ready(true),
            };
            match written {
                Ok(written) if written > 0 => {
                    self.chunk.advance(written.min(self.chunk.len()));
                    self.passing = self.passing.saturating_sub(written);
                    self.moved += written as u64;
                }
                _ => return Poll::Ready(false),
            }
        }
    }

    /// Reads more: into memory, or past it while much comes. A wait holds neither memory nor a pipe.
    fn poll_take(
        &mut self,
        from: &mut Stream,
        to: &Stream,
        may_splice: bool,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.is_bulk
            && let Some(taken) = self.poll_splice(from, cx)
        {
            return taken;
        }
        (self.pipe, self.chunk) = (None, Chunk::empty());
        let taken = from.poll_fill(cx, &mut self.chunk);
        if let Poll::Ready(Ok(n)) = taken {
            let is_much = n >= BULK_BEGUN && self.moved >= SPLICED_AFTER;
            self.is_bulk = is_much && may_splice && from.can_splice() && to.can_splice();
        }
        taken
    }

    /// Reads more into a pipe. None without a free pipe, or if the system does not allow it.
    fn poll_splice(&mut self, from: &mut Stream, cx: &mut Context<'_>) -> Option<Poll<io::Result<usize>>> {
        let mut pipe = self.pipe.take().or_else(Pipe::take)?;
        let taken = from.poll_splice_into(cx, &mut pipe, usize::MAX);
        match &taken {
            Poll::Ready(Ok(n)) if *n > 0 => {
                self.is_bulk = *n >= BULK_LEFT;
                self.pipe = Some(pipe);
            }
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Unsupported => return None,
            _ => {}
        }
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// More than all buffers on the way hold.
    const MUCH: usize = 24 << 20;

    /// Returns a connection: the gateway's end, and the other one.
    async fn pair() -> (Stream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let far = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("a connection");
        (Stream::Tcp(listener.accept().await.expect("a connection").0), far)
    }

    /// Returns bytes whose position is recognizable, as the length of their pattern divides no buffer size.
    fn bytes() -> Vec<u8> {
        let mut bytes = (0..=250).collect::<Vec<u8>>().repeat(MUCH / 251 + 1);
        bytes.truncate(MUCH);
        bytes
    }

    /// Lets both sides send much data and end, and checks that each receives the other's bytes. Returns true if pipes
    /// were used.
    async fn exchange() -> bool {
        let ((down, client), (up, node)) = (pair().await, pair().await);
        let mut relay = Relay::new(down, up, Chunk::copy_of(b"early"), None);
        let mut has_spliced = false;
        let relayed = async {
            let relayed = poll_fn(|cx| {
                let polled = relay.poll(cx);
                has_spliced |= relay.to_up.pipe.is_some() || relay.to_down.pipe.is_some();
                polled
            });
            let relayed = relayed.await;
            assert!(relay.to_up.pipe.is_none() && relay.to_down.pipe.is_none(), "they are given back");
            let moved = relay.moved();
            // The last end is sent by the drop.
            drop(relay);
            (relayed, moved)
        };
        let talk = async |mut side: TcpStream| {
            let (mut read, mut write) = side.split();
            let (sent, mut got) = (bytes(), Vec::new());
            let send = async {
                write.write_all(&sent).await.expect("write");
                write.shutdown().await.expect("the end");
            };
            let (_, read) = tokio::join!(send, read.read_to_end(&mut got));
            read.expect("read");
            got
        };
        let (relayed, to_client, to_node) = tokio::join!(relayed, talk(client), talk(node));
        assert_eq!(relayed, (Ok(()), (MUCH as u64 + 5, MUCH as u64)));
        assert!(to_client == bytes() && to_node == [b"early".to_vec(), bytes()].concat());
        has_spliced
    }

    #[tokio::test]
    async fn bulk_data_is_spliced_or_copied_without_a_pipe() {
        assert!(exchange().await);
        let all: Vec<Pipe> = std::iter::from_fn(Pipe::take).collect();
        assert!(!exchange().await);
        drop(all);
        assert!(exchange().await);
    }

    #[tokio::test]
    async fn a_slow_reader_slows_the_other_side_down() {
        let ((down, client), (up, mut node)) = (pair().await, pair().await);
        let mut relay = Relay::new(down, up, Chunk::empty(), None);
        let sent = bytes();
        let mut sending = std::pin::pin!(node.write_all(&sent));
        let mut got = 0;
        let mut buffer = vec![0; 64 * 1024];
        poll_fn(|cx| {
            let is_done = sending.as_mut().poll(cx).is_ready();
            assert!(relay.poll(cx).is_pending());
            // It reads a little at a time, and only when nothing else moves.
            if let Ok(n) = client.try_read(&mut buffer) {
                assert!(buffer[..n] == sent[got..got + n]);
                got += n;
                assert!(relay.moved().1 - got as u64 <= 16 << 20, "the kernel's buffers, and no more");
            }
            if is_done && got == MUCH {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    #[tokio::test]
    async fn a_node_reset_amid_bulk_data_is_no_end() {
        let ((down, mut client), (up, mut node)) = (pair().await, pair().await);
        let mut relay = Relay::new(down, up, Chunk::empty(), None);
        let talk = async {
            let sent = bytes();
            let send = async { node.write_all(&sent[..8 << 20]).await.expect("write") };
            let mut got = vec![0; 7 << 20];
            let (_, read) = tokio::join!(send, client.read_exact(&mut got));
            read.expect("read");
            assert!(got == sent[..7 << 20]);
            Stream::Tcp(node).reset();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            relayed = poll_fn(|cx| relay.poll(cx)) => assert_eq!(relayed, Err(Broken::Upstream)),
            () = talk => {}
        }
        assert!(relay.moved().1 >= 7 << 20);
    }
}
