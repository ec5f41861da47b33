//! A stream of bytes under the codec, watched.
//!
//! The codec reads and writes by itself; this is where somebody else sees how much, how fast and
//! of what kind.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use sigma_http::Chunk;
use sigma_http::h2_frames::{FrameClass, FrameScanner};
use sigma_net::{Stream, deadline};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes written for which a peer may send one more control frame: one that reads much has many
/// windows to update.
const BYTES_PER_CONTROL: u64 = 1024;

/// How often a peer may send what costs it nothing.
#[derive(Debug, Clone, Copy)]
pub struct FloodLimits {
    /// Streams taken back, per minute.
    pub resets_per_minute: u32,
    /// Frames that carry no part of a message, per second, besides what the bytes written allow.
    pub controls_per_second: u32,
}

impl FloodLimits {
    /// No limit: for peers that were chosen.
    pub const NONE: FloodLimits = FloodLimits { resets_per_minute: u32::MAX, controls_per_second: u32::MAX };
}

/// What is known of a [`Wire`] while the codec owns it.
#[derive(Debug, Default)]
pub(super) struct Monitor {
    read: Cell<u64>,
    written: Cell<u64>,
    blocked: Cell<bool>,
    head_open: Cell<bool>,
    flooded: Cell<bool>,
    /// Heads that the peer may still begin; None for any number.
    heads_left: Cell<Option<u32>>,
}

impl Monitor {
    /// Lets the peer begin this many heads more, where they are counted.
    pub(super) fn grant_heads(&self, heads: u32) {
        self.heads_left.set(self.heads_left.get().map(|left| left.saturating_add(heads)));
    }

    /// Takes back what a stream that has ended did not use of its grant.
    pub(super) fn withdraw_heads(&self, heads: u32) {
        self.heads_left.set(self.heads_left.get().map(|left| left.saturating_sub(heads)));
    }

    /// Bytes read so far.
    pub(super) fn read(&self) -> u64 {
        self.read.get()
    }

    /// Bytes written so far.
    pub(super) fn written(&self) -> u64 {
        self.written.get()
    }

    /// Whether the last write found no room.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.get()
    }

    /// Whether the peer has begun a head and not ended it.
    pub(super) fn is_head_open(&self) -> bool {
        self.head_open.get()
    }

    /// Whether the peer is over its [`FloodLimits`]; nothing is read of it any more.
    pub(super) fn is_flooded(&self) -> bool {
        self.flooded.get()
    }
}

/// A count within a period of time.
#[derive(Debug)]
struct Quota {
    limit: u32,
    period_ms: u64,
    began_ms: u64,
    count: u64,
    /// Of the monitor, when the period began.
    written: u64,
}

impl Quota {
    fn new(limit: u32, period_ms: u64) -> Quota {
        Quota { limit, period_ms, began_ms: 0, count: 0, written: 0 }
    }

    /// Counts one; returns whether it is still allowed.
    fn allows(&mut self, now_ms: u64, written: u64) -> bool {
        if now_ms.saturating_sub(self.began_ms) >= self.period_ms {
            (self.began_ms, self.count, self.written) = (now_ms, 0, written);
        }
        self.count += 1;
        self.count <= u64::from(self.limit) + (written - self.written) / BYTES_PER_CONTROL
    }
}

/// A [`Stream`] as the codec wants it.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Stream,
    /// Bytes that were read before the version was known.
    first: Chunk,
    scanner: FrameScanner,
    resets: Quota,
    controls: Quota,
    monitor: Rc<Monitor>,
}

impl Wire {
    /// The server's end of a connection whose client has sent `first` already.
    pub(super) fn of_client(stream: Stream, first: Chunk, limits: FloodLimits) -> Wire {
        Wire::new(stream, first, FrameScanner::of_client(), limits)
    }

    /// The client's end of a connection. The server may begin as many heads as it is granted by
    /// [`Monitor::grant_heads`]: the codec keeps all that nobody has asked for yet.
    pub(super) fn of_server(stream: Stream) -> Wire {
        let wire = Wire::new(stream, Chunk::empty(), FrameScanner::default(), FloodLimits::NONE);
        wire.monitor.heads_left.set(Some(0));
        wire
    }

    fn new(stream: Stream, first: Chunk, scanner: FrameScanner, limits: FloodLimits) -> Wire {
        Wire {
            stream,
            first,
            scanner,
            resets: Quota::new(limits.resets_per_minute, 60_000),
            controls: Quota::new(limits.controls_per_second, 1_000),
            monitor: Rc::default(),
        }
    }

    /// What is to be known of it later.
    pub(super) fn monitor(&self) -> Rc<Monitor> {
        Rc::clone(&self.monitor)
    }

    fn scan(&mut self, bytes: &[u8]) {
        let (resets, controls, monitor) = (&mut self.resets, &mut self.controls, &self.monitor);
        let (now_ms, written) = (deadline::now_ms(), monitor.written());
        self.scanner.feed(bytes, |class| {
            let allowed = match class {
                FrameClass::Head => match monitor.heads_left.get() {
                    None => true,
                    Some(left) => {
                        monitor.heads_left.set(Some(left.saturating_sub(1)));
                        left > 0
                    }
                },
                FrameClass::Message => true,
                FrameClass::Reset => resets.allows(now_ms, 0),
                FrameClass::Control => controls.allows(now_ms, written),
            };
            if !allowed {
                monitor.flooded.set(true);
            }
        });
        monitor.head_open.set(self.scanner.is_head_open());
        monitor.read.set(monitor.read() + bytes.len() as u64);
    }

    fn wrote(&self, result: &Poll<io::Result<usize>>) {
        self.monitor.blocked.set(result.is_pending());
        if let Poll::Ready(Ok(n)) = result {
            self.monitor.written.set(self.monitor.written() + *n as u64);
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.monitor.is_flooded() {
            // Whoever drives the codec looks at the monitor next.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        if this.first.is_empty() {
            let room = buf.initialize_unfilled();
            match this.stream.poll_read(cx, room) {
                Poll::Ready(Ok(n)) => buf.advance(n),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        } else {
            let n = this.first.len().min(buf.remaining());
            buf.put_slice(&this.first[..n]);
            this.first.advance(n);
        }
        this.scan(&buf.filled()[before..]);
        if this.monitor.is_flooded() && this.monitor.heads_left.get().is_some() {
            // Nobody watches a server's end: the connection is broken for all streams on it.
            return Poll::Ready(Err(io::Error::other("more heads than requests can have")));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = self.stream.poll_write(cx, buf);
        self.wrote(&result);
        result
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = self.stream.poll_write_vectored(cx, bufs);
        self.wrote(&result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codec keeps every head that has come until its stream is asked for it, so a server that
    /// sends interim ones without end would fill the memory.
    #[tokio::test]
    async fn a_server_begins_no_more_heads_than_it_is_granted() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let near = Stream::connect_tcp(listener.local_addr().expect("address")).await.expect("connect");
        let (mut far, _) = listener.accept().await.expect("accept");
        let mut wire = Wire::of_server(near);
        let monitor = wire.monitor();
        let head = [0, 0, 0, 1, 4, 0, 0, 0, 1];
        let data = [0, 0, 0, 0, 0, 0, 0, 0, 1];
        monitor.grant_heads(4);
        monitor.withdraw_heads(1);
        let mut bytes = [0; 36];
        far.write_all(&[head, data, head, head].concat()).await.expect("write");
        wire.read_exact(&mut bytes).await.expect("three heads and a piece of a body");
        monitor.grant_heads(1);
        far.write_all(&[head, data].concat()).await.expect("write");
        wire.read_exact(&mut bytes[..18]).await.expect("one more");
        far.write_all(&head).await.expect("write");
        wire.read(&mut bytes).await.expect_err("one too many");
    }

    #[test]
    fn quotas_start_over_and_grow_with_what_is_written() {
        let mut quota = Quota::new(2, 1_000);
        assert!(quota.allows(5_000, 0) && quota.allows(5_100, 0));
        assert!(!quota.allows(5_200, 0), "the third within a second");
        assert!(quota.allows(5_300, 2 * BYTES_PER_CONTROL), "a reader has windows to update");
        assert!(!quota.allows(5_400, 2 * BYTES_PER_CONTROL));
        assert!(quota.allows(6_000, 2 * BYTES_PER_CONTROL), "the next second");
    }
}
