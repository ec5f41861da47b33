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
use sigma_http::frames::{FrameClass, FrameScanner};
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
pub struct Monitor {
    read: Cell<u64>,
    written: Cell<u64>,
    blocked: Cell<bool>,
    head_open: Cell<bool>,
    flooded: Cell<bool>,
}

impl Monitor {
    /// Bytes read so far.
    pub fn read(&self) -> u64 {
        self.read.get()
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written.get()
    }

    /// Whether the last write found no room.
    pub fn is_blocked(&self) -> bool {
        self.blocked.get()
    }

    /// Whether the peer has begun a head and not ended it.
    pub fn is_head_open(&self) -> bool {
        self.head_open.get()
    }

    /// Whether the peer is over its [`FloodLimits`]; nothing is read of it any more.
    pub fn is_flooded(&self) -> bool {
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
pub struct Wire {
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
    pub fn of_client(stream: Stream, first: Chunk, limits: FloodLimits) -> Wire {
        Wire::new(stream, first, FrameScanner::of_client(), limits)
    }

    /// The client's end of a connection.
    pub fn of_server(stream: Stream) -> Wire {
        Wire::new(stream, Chunk::empty(), FrameScanner::default(), FloodLimits::NONE)
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
    pub fn monitor(&self) -> Rc<Monitor> {
        Rc::clone(&self.monitor)
    }

    fn scan(&mut self, bytes: &[u8]) {
        let (resets, controls, monitor) = (&mut self.resets, &mut self.controls, &self.monitor);
        let (now_ms, written) = (deadline::now_ms(), monitor.written());
        self.scanner.feed(bytes, |class| {
            let allowed = match class {
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
