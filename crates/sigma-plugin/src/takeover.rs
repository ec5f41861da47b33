//! A plugin that takes a connection over: it is the other end of a tunnel, instead of a node.

use std::io;
use std::task::{Context, Poll};

use sigma_http::Chunk;

/// The plugin's end of a tunnel to a client; see [`crate::Step::Takeover`]. Both directions run concurrently, each at
/// the pace of its receiver; it is dropped when the tunnel ends.
pub trait Takeover {
    /// Returns the next bytes for the client, not empty; None ends the tunnel after earlier bytes are sent. It is not
    /// polled while the client has earlier bytes to read.
    ///
    /// # Errors
    /// Returns an error if the tunnel fails.
    fn poll_next(&mut self, task: &mut Context<'_>) -> Poll<io::Result<Option<Chunk>>>;

    /// Returns ready if it can take bytes of the client. While it is pending, the client is not read.
    ///
    /// # Errors
    /// Returns an error if it takes no more bytes; the tunnel ends.
    fn poll_ready(&mut self, _task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Takes bytes of the client, only after [`Takeover::poll_ready`] was ready.
    fn take(&mut self, data: Chunk);
}
